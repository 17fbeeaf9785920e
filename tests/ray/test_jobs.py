"""The jobs, submitted to a real cluster from an environment where froude is not installed."""
