"""Attention of the package's own model: which tokens a token sees, and by which angles positions turn."""
