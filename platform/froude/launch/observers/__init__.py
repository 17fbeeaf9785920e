"""What watches a run on a cluster, one file each: it tells the head or Ray what it saw, and steers nothing."""

from froude.train.observers import Observer, Watched


class Lasting(Observer):
    """An observer of several loops: workers that were held go on with another, which needs the first one's memory."""

    def begin(self, loop: Watched) -> None:
        """It keeps nothing of the loop."""
