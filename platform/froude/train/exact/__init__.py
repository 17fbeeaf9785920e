"""Sums over ranks that have the same bits at any number of workers, and what else those bits depend on."""
