"""Laws of the compute-optimal run: isoFLOP profiles, and the frontier of training curves."""
