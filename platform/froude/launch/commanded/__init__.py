"""Trials that a user's command trains, on a cluster."""
