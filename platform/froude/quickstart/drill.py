"""A failure drill for a run on a simulated cluster: one node is killed on the way, and one comes later."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from froude.launch.cluster import SimulatedCluster
from froude.launch.elastic import Progress


@dataclass
class Drill:
    """Kills a worker node (SIGKILL) at `kill_at` of the steps, and adds one at `add_at`; called with progress.

    The kill waits until all nodes work; the node comes after the run went on without the lost one. `say` is called
    for both. A run that resumes with its kill behind it (`killed`) is left alone.
    """

    cluster: SimulatedCluster
    kill_at: float = 1 / 3
    add_at: float = 0.6
    killed: bool = False
    added: bool = False
    say: Callable[[str], None] = print

    def __call__(self, now: Progress) -> None:
        if not self.killed and now.step >= self.kill_at * now.steps and now.world == len(self.cluster.nodes):
            self.killed = True
            self.say(f"killing one of {now.world} nodes at step {now.step} (SIGKILL)")
            self.cluster.kill_node(self.cluster.nodes[-1])
        elif self._may_add(now):
            self.added = True
            self.cluster.add_node()
            self.say(f"a new node joined at step {now.step}")

    def _may_add(self, now: Progress) -> bool:
        return (
            self.killed
            and not self.added
            and now.step >= self.add_at * now.steps
            and now.world == len(self.cluster.nodes)
        )
