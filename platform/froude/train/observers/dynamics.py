"""What tells that a run is about to spike: attention logits, how far weights move, how near Adam is to its epsilon.

docs/guide/stability.md says what each number means, from where on it is one to worry about, and what it costs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from froude.train import parallel
from froude.train.observers.observer import Made, Observer, Watched
from froude.train.optimizers.composed import Rows
from froude.train.optimizers.owners import Matrix, Owners

#: Below this median of sqrt(v)/epsilon, epsilon has taken over: updates shrink with the gradient (Wortsman et al.
#: 2309.14322, section 3.4).
LEAST = 10.0
#: Bins of log10(sqrt(v)/epsilon): their counts can be added over ranks, and a median of them is good to 1.2%.
LOW, HIGH, BINS = -4.0, 20.0, 2400
#: Of the singular values of a momentum; of matrices whose shorter side is longer, they take longer than many steps.
QUANTILES, LONGEST = (0.1, 0.5, 0.9), 1024


class Dynamics(Observer):
    """Rows of the norms frame every `norms_every` steps, and an event where a median of sqrt(v)/epsilon is small."""

    def begin(self, loop: Watched) -> None:
        super().begin(loop)
        self.due, self.before = False, dict[str, Tensor]()
        self.logits: list[Tensor] = []

    def around(self, step: int) -> AbstractContextManager[object]:
        every = self.loop.run.norms_every
        self.due, self.before = every > 0 and step % every == 0, {}
        return self._watching() if self.due else nullcontext()

    def gradients(self, step: int) -> None:
        if self.due:
            self.before = {name: parallel.local(p).detach().clone() for name, p in self._matrices()}

    def stepped(self, made: Made) -> None:
        if not self.due:
            return
        moments = self._second_moments()
        values = [*self._attention(), *self._ratios(), *moments, *self._momenta()]
        self.before = {}
        if self.loop.world.rank:
            return
        run, here = self.loop.run, {"attempt": self.loop.attempt, "step": made.step}
        self.loop.tables["norms"] += [
            {"run": run.name, **here, "kind": kind, "name": name, "value": value}
            for kind, name, value in values
        ]
        self.loop.tables["events"] += [
            {
                "run": run.name,
                **here,
                "batch": None,
                "action": "warn",
                "why": f"the median of sqrt(v)/epsilon of {name} parameters is {value:.3g}, below {LEAST:g}: epsilon "
                "shortens their updates; lower it in a new run",
                "time": datetime.now(UTC),
            }
            for _, name, value in moments
            if value < LEAST
        ]

    def rewind(self, state: Mapping[str, Any]) -> None:
        self.before = {}

    @contextmanager
    def _watching(self) -> Iterator[None]:
        """The largest attention logits of the blocks that tell theirs are seen."""
        blocks = [block for block in self._blocks() if hasattr(block, "largest_attention_logit")]
        start = torch.full((), -torch.inf, device=self.loop.world.device)
        self.logits = [start.clone() for _ in blocks]
        hooks = [
            block.register_forward_pre_hook(partial(self._see, i), with_kwargs=True)
            for i, block in enumerate(blocks)
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _see(self, number: int, block: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        """As a hook before a block's forward pass; that of a rank without a slot, short or empty, does not count."""
        stream = next((each for each in (*arguments, *named.values()) if isinstance(each, Tensor)), None)
        if stream is not None and len(stream) and stream.shape[1] == self.loop.run.model.context:
            given = [_detached(each) for each in arguments]
            found = block.largest_attention_logit(
                *given, **{key: _detached(each) for key, each in named.items()}
            )
            self.logits[number] = torch.maximum(self.logits[number], found)

    def _attention(self) -> list[tuple[str, str, float]]:
        if not self.logits:
            return []
        found = self.loop.world.largest(torch.stack(self.logits)).tolist()
        return [("attention_logit", f"blocks.{i}", value) for i, value in enumerate(found)]

    def _ratios(self) -> list[tuple[str, str, float]]:
        """The RMS of what the update changed over that of the weights before."""
        names, squares = [], []
        for name, parameter in self._matrices():
            old, new = self.before[name].double(), parallel.local(parameter).detach().double()
            names.append(name)
            squares += [(new - old).square().sum(), old.square().sum()]
        if not names:
            return []
        moved, whole = self.loop.world.sum(torch.stack(squares)).view(-1, 2).sqrt().T.tolist()
        pairs = zip(names, moved, whole, strict=True)
        return [("update_ratio", name, a / b) for name, a, b in pairs if b]

    def _second_moments(self) -> list[tuple[str, str, float]]:
        """The median of sqrt(v)/epsilon over each kind's elements that have had a gradient, of Adam and its kin."""
        kinds: Mapping[str, str] = self.loop.trainer.model.kinds()  # type: ignore[operator]
        counts = {kind: torch.zeros(BINS, dtype=torch.float64) for kind in sorted({*kinds.values()})}
        for name, state, group in self._states():
            second, beta2 = state.get("exp_avg_sq"), group.get("betas", (0.0, 0.0))[1]
            if (
                second is None
                or not second.is_floating_point()
                or "step" not in state
                or not group.get("eps")
            ):
                continue
            corrected = parallel.local(second).detach() / (1 - beta2 ** float(state["step"]))
            sizes = (corrected[corrected > 0].sqrt() / group["eps"]).log10().clamp(LOW, HIGH).float().cpu()
            counts[kinds[name]] += sizes.histc(BINS, LOW, HIGH).double()
        device = self.loop.world.device
        totals = self.loop.world.sum(torch.stack(list(counts.values())).to(device)).cpu()
        return [
            ("second_moment", kind, _median(total))
            for kind, total in zip(counts, totals, strict=True)
            if total.sum()
        ]

    def _momenta(self) -> list[tuple[str, str, float]]:
        """Quantiles of the singular values of the momentum of matrices that have an owner, such as Muon's."""
        found: list[tuple[str, str, float]] = []
        for part in self._parts():
            if not isinstance(part, Owners):
                continue
            matrices: list[Matrix] = [
                m for dealt in part.rounds for m in dealt if m and min(m.shape) <= LONGEST
            ]
            mine = {each.matrix.name: each.state().get("momentum_buffer") for each in part.owned}
            table = torch.zeros(len(matrices), len(QUANTILES), dtype=torch.float64)
            quantiles = torch.tensor(QUANTILES, dtype=torch.float64)
            for row, matrix in zip(table, matrices, strict=True):
                if (momentum := mine.get(matrix.name)) is not None:
                    row += torch.linalg.svdvals(momentum.detach().double()).cpu().quantile(quantiles)
            values = self.loop.trainer.shards.sum(table.to(self.loop.world.device)).tolist()
            found += [
                (f"momentum_{share:.0%}", matrix.name, value)
                for matrix, row in zip(matrices, values, strict=True)
                for share, value in zip(QUANTILES, row, strict=True)
                if value
            ]
        return found

    def _states(self) -> Iterator[tuple[str, Mapping[str, Tensor], Mapping[str, Any]]]:
        """The name of each parameter, or of that of each matrix, here; what the optimizer knows of it; its group."""
        names = {p: name for name, p in self.loop.trainer.model.named_parameters()}
        for part in self._parts():
            if isinstance(part, Rows):
                own = {p: name for name, p in part.parameters.items()}
                for group in part.param_groups:
                    yield from ((own[p], part.optimizer.state.get(p, {}), group) for p in group["params"])
            elif isinstance(part, Owners):
                for each in part.owned:
                    yield names[each.matrix.parameter], each.state(), each.optimizer.param_groups[0]

    def _parts(self) -> list[Any]:
        return list(self.loop.trainer.optimizer.parts)

    def _matrices(self) -> list[tuple[str, nn.Parameter]]:
        return [(name, p) for name, p in self.loop.trainer.model.named_parameters() if p.ndim > 1]

    def _blocks(self) -> list[nn.Module]:
        return list(self.loop.trainer.model.blocks())  # type: ignore[operator]


def _detached(given: Any) -> Any:
    return given.detach() if isinstance(given, Tensor) else given


def _median(counts: Tensor) -> float:
    """The middle of the bin in which the middle element is."""
    place = int((counts.cumsum(0) >= counts.sum() / 2).nonzero()[0])
    return float(10 ** (LOW + (place + 0.5) * (HIGH - LOW) / BINS))
