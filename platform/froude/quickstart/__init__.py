"""The whole loop on this machine, as `froude quickstart` and `make quickstart` run it."""
