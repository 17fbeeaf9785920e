"""What a run's `precision` means: products, weights that are rounded, a scaled loss, and the error of it all."""
