"""What watches the training loop, one file each: it keeps rows and state of what it saw, and changes no bit of a run.

A tracker is one more: a subclass of `Observer`, handed to `froude.train.worker.run_worker(observers=…)`.
"""

from froude.train.observers.observer import Made, Observer, Watched

__all__ = ["Made", "Observer", "Watched"]
