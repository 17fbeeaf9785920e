"""Checkpoints in Parquet under a linear, fenced commit log: what is reachable from the log is the run."""
