"""How a run's tensors and its batch lie on workers, as train/parallel.py lays them."""

from __future__ import annotations

from dataclasses import dataclass

from froude.config import Run
from froude.hardware.sizes import KEEP_GATHERED, Groups, Place, Sizes


@dataclass(frozen=True)
class Layout:
    """How a run's tensors lie on its workers."""

    run: Run
    sizes: Sizes
    place: Place

    @property
    def windows(self) -> int:
        """Of one pass of a worker."""
        return -(-self._stretch // self._parts)

    @property
    def tokens(self) -> int:
        """Of one pass of a worker."""
        return self.windows * self.run.model.context

    @property
    def passes(self) -> int:
        """Forward and backward passes of a worker in a step."""
        return (self._rounds if self.run.reduction == "exact" else 1) * self._parts

    @property
    def busiest(self) -> int:
        """Tokens of a step of the worker that has the most, for whom the others wait."""
        each = -(-self.run.windows // self.slots)
        return each * self._rounds * self.run.model.context

    @property
    def slots(self) -> int:
        """The run's, or as many as workers where those are more."""
        return max(self.run.slots, self.place.workers)

    @property
    def _stretch(self) -> int:
        """Windows that the busiest worker has at hand: a slot's in an exact run, else those of all of its slots."""
        most = self.run.windows * max((factor for _, factor in self.run.schedule.ramp), default=1)
        return -(-most // self.slots) * (1 if self.run.reduction == "exact" else self._rounds)

    @property
    def _rounds(self) -> int:
        """Slots of the worker that has most."""
        return -(-self.slots // self.place.workers)

    @property
    def _parts(self) -> int:
        size = self.run.micro_batch // self.run.model.context or self._stretch
        return -(-self._stretch // size)

    @property
    def groups(self) -> Groups:
        return Groups.of(self.run, self.place)

    @property
    def is_small(self) -> bool:
        """Whether FSDP2 has all of the model in one unit."""
        return self.sizes.parameters <= KEEP_GATHERED

    @property
    def whole(self) -> bool:
        """Whether a worker works on whole gradients: it shares with nobody, or an exact run's slots come in blocks."""
        return self.groups.shards == 1 or (
            self.run.reduction == "exact" and self.run.slot_schedule == "block"
        )

    @property
    def keeps_gathered(self) -> bool:
        return self.whole or self.is_small or self.run.compute.strategy in ("zero1", "zero2")

    @property
    def shares_each_pass(self) -> bool:
        """Whether gradients are shared out after each micro-batch, so that no whole ones wait."""
        if self.run.reduction == "exact":
            return not self.whole
        return self.run.compute.strategy == "zero2" or not self.keeps_gathered

    @property
    def state(self) -> float:
        """Bytes of the optimizer's state."""
        return self.sizes.state_bytes / self.groups.shards

    @property
    def gathers(self) -> int:
        """How often in a step a worker is sent the weights that others hold."""
        if self.groups.shards == 1:
            return 0
        return 1 if self.keeps_gathered else 2 * self.passes

    @property
    def reductions(self) -> int:
        """How often in a step gradients are shared out among those who share."""
        if self.groups.shards == 1:
            return 0
        return self.passes if self.shares_each_pass else 1
