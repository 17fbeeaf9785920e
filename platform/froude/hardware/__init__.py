"""Devices, their prices, and the arithmetic of what a run takes on them: bytes of a worker, seconds of a step."""
