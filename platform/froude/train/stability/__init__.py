"""When a run counts as diverged, and what the spike policy does before that."""
