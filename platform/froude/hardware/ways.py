"""The ways in which a run could be trained on given devices, which of them fit, and the cheapest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from froude.compute import Checkpointing, Strategy
from froude.config import ConfigError, Run
from froude.hardware import tables
from froude.hardware.memory import Memory, memory
from froude.hardware.roofline import SECONDS_A_DAY, Step, step
from froude.hardware.sizes import Place, Sizes
from froude.hardware.tables import Device

#: Times as many nodes, which stand for any number: what is shared out among so many takes next to nothing.
ANY_NUMBER = 2**20
#: Tokens whose logits exist at once, where chunks are a remedy.
CHUNK = 2048
STRATEGIES: tuple[Strategy, ...] = ("ddp", "zero1", "zero2", "fsdp", "hsdp")


@dataclass(frozen=True)
class Way:
    """A run with a strategy, a checkpointing and a micro-batch: what a worker takes, and how long a step."""

    run: Run
    device: Device
    memory: Memory
    step: Step

    @property
    def fits(self) -> bool:
        return self.memory.needed <= self.device.memory


@dataclass(frozen=True)
class DevicePlan:
    """All ways on one kind of device, each with the largest micro-batch that fits, and what would help if none does.

    `floor`, where nothing would: what a worker would need if any number of the table's largest device shared the run.
    """

    run: Run
    sizes: Sizes
    device: Device
    place: Place
    dollars: float
    ways: tuple[Way, ...]
    remedies: tuple[str, ...]
    floor: Way | None = None

    @property
    def chosen(self) -> Way | None:
        """The cheapest that fits: the devices being the same, the quickest, then the one that needs least memory."""
        fitting = [way for way in self.ways if way.fits]
        return min(fitting, key=lambda way: (way.step.seconds, way.memory.needed), default=None)

    @property
    def flops(self) -> float:
        """The model's, of all of the run, without what is computed again."""
        return self.sizes.flops_per_token * self.sizes.passes * self.run.tokens

    def days(self, way: Way) -> float:
        """Of training alone."""
        return self.run.tokens / way.step.tokens_per_second / SECONDS_A_DAY

    def cost(self, way: Way) -> float:
        """Dollars for all devices."""
        return self.days(way) * 24 * self.place.workers * self.dollars

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        found = {
            "run": self.run.name,
            "device": self.device.name,
            "nodes": str(self.place),
            "workers": self.place.workers,
            "parameters": self.sizes.parameters,
            "activations_estimated": self.sizes.estimated,
            "flops": self.flops,
            "dollars_per_device_hour": self.dollars,
            "ways": [self._row(way) for way in self.ways],
            "remedies": list(self.remedies),
        }
        return found | {"chosen": self._row(self.chosen) if self.chosen else None}

    def _row(self, way: Way) -> dict[str, Any]:
        compute = way.run.compute
        return {
            "strategy": compute.strategy,
            "checkpointing": compute.checkpointing,
            "micro_batch": way.run.micro_batch,
            "passes": way.memory.passes,
            "bytes": {**way.memory.columns, "peak": way.memory.peak, "reserve": way.memory.reserve},
            "host_bytes": way.memory.host,
            "needed_bytes": way.memory.needed,
            "fits": way.fits,
            "step_seconds": way.step.seconds,
            "tokens_per_second": way.step.tokens_per_second,
            "mfu": way.step.mfu,
            "bound": way.step.bound,
            "days": self.days(way),
            "dollars": self.cost(way),
        }


def plan(run: Run, sizes: Sizes, place: Place, device: Device, dollars: float, file: str = "") -> DevicePlan:
    """Every strategy and checkpointing that the run can have.

    ConfigError if training would refuse the run there, or if its batch is too small for the workers.
    """
    _check(run, place, device)
    if run.windows < place.workers:
        raise ConfigError(
            f"a batch must have a window for each worker, but {run.batch:,} tokens are {run.windows} windows for "
            f"{place.workers} workers; enlarge `batch`, or use fewer devices"
        )
    ways = tuple(_largest(each, sizes, place, device) for each in _runs(run, sizes, place))
    if any(way.fits for way in ways):
        return DevicePlan(run, sizes, device, place, dollars, ways, ())
    remedies = tuple(_remedies(run, sizes, place, device, file))
    floor = None if remedies else _floor(run, sizes, place, [device, *_larger(run, device, file)][-1])
    return DevicePlan(run, sizes, device, place, dollars, ways, remedies, floor)


def _check(run: Run, place: Place, device: Device) -> None:
    """ConfigError if so many workers on such a device would refuse the run when they start."""
    kind: Literal["cuda", "cpu"] = "cuda" if device.is_gpu else "cpu"
    if run.device not in ("auto", kind):
        raise ConfigError(
            f'`device` must be "auto" or "{kind}" in a plan for {device.name}, but got "{run.device}"; set it, or plan '
            f"for {'a GPU, such as h100-80gb' if run.device == 'cuda' else 'cpu'}"
        )
    device.flops(run.precision)
    placed = run.model_copy(update={"device": kind, "workers": place.workers})
    where = "" if run.device == kind else f"{device.name} is a {'GPU' if device.is_gpu else 'CPU'}"
    placed.compute.check_device(kind, place.workers, where)
    placed.check_optimizer()


def _able(run: Run, place: Place, device: Device) -> bool:
    try:
        _check(run, place, device)
    except ConfigError:
        return False
    return True


def _runs(run: Run, sizes: Sizes, place: Place) -> Iterator[Run]:
    """The run with every strategy and checkpointing that it can have there."""
    strategies: Sequence[Strategy] = STRATEGIES if place.workers > 1 else ("fsdp",)
    if run.reduction == "exact":
        strategies = ("fsdp",)
    elif place.nodes == 1 and not run.compute.replicas:
        strategies = [each for each in strategies if each != "hsdp"]  # one replica a node is fsdp
    for strategy in strategies:
        for checkpointing in get_args(Checkpointing):
            # sqrt's segments are made in the package's own model, and fp8 is not computed again.
            if (sizes.estimated and checkpointing == "sqrt") or (
                run.precision == "fp8" and checkpointing != "none"
            ):
                continue
            replicas = run.compute.replicas if strategy == "hsdp" else 0
            compute = {"strategy": strategy, "checkpointing": checkpointing, "replicas": replicas}
            # Not `replace`, which would check the whole run anew for each of hundreds.
            yield run.model_copy(update={"compute": run.compute.model_copy(update=compute)})


def _largest(run: Run, sizes: Sizes, place: Place, device: Device) -> Way:
    """With the largest micro-batch that fits, of halves of all at once; one window if none does."""
    context = run.model.context
    windows = memory(run, sizes, place, gpu=device.is_gpu).tokens // context
    while True:
        found = memory(run, sizes, place, gpu=device.is_gpu)
        if found.needed <= device.memory or windows == 1:
            return Way(run, device, found, step(run, sizes, place, device))
        windows = -(-windows // 2)
        run = run.model_copy(update={"micro_batch": windows * context})


def _fitting(run: Run, sizes: Sizes, place: Place, device: Device) -> Iterator[Memory]:
    """What fits of its ways: with one window a pass, or without gradients that wait, with all at once."""
    for each in _runs(run, sizes, place):
        for micro_batch in (run.model.context, run.micro_batch):
            tried = each.model_copy(update={"micro_batch": micro_batch})
            found = memory(tried, sizes, place, gpu=device.is_gpu)
            if found.needed <= device.memory:
                yield found


def _fits(run: Run, sizes: Sizes, place: Place, device: Device) -> bool:
    """Whether one of its ways does."""
    return next(_fitting(run, sizes, place, device), None) is not None


def offloaded(host: float, place: Place) -> str:
    """What a worker's state takes in its host, in words; `host` bytes."""
    each, node = (
        f"{size:,.0f}" if size >= 10 else f"{size:.2g}" for size in (host / 1e9, host * place.per_node / 1e9)
    )
    words = f"{each} GB of the host's memory a worker"
    return f"{words}, {node} GB a node" if place.per_node > 1 else words


def _remedies(run: Run, sizes: Sizes, place: Place, device: Device, file: str) -> Iterator[str]:
    """What would make one of the ways fit: the smallest change of each kind that does, or of two kinds together."""
    chunked = run if run.compute.loss_chunk else _changed(run, {"compute.loss_chunk": CHUNK})
    both_away = _changed(chunked, {"compute.offload": True})
    chunk = f"compute.loss_chunk = {CHUNK}" if chunked is not run else ""
    away = _changed(run, {"compute.offload": True})
    here = ""
    if away is not run and _fits(away, sizes, place, device):
        here = "compute.offload = true"
    elif chunk and _fits(chunked, sizes, place, device):
        here = chunk
    elif both_away is not chunked and _fits(both_away, sizes, place, device):
        away, here = both_away, " and ".join(filter(None, (chunk, "compute.offload = true")))
    if "offload" in here:
        least = min(each.host for each in _fitting(away, sizes, place, device))
        here += f", with {offloaded(least, place)}"
    kinds = [(run, ""), *([(chunked, f" with {chunk}")] if chunk else [])]
    larger = _larger(run, device, file)
    more = _alike(kinds, sizes, [(f"--nodes {each}", each, device) for each in _more(run, place)])
    others = _alike(kinds, sizes, [(f"--device {each.name}", place, each) for each in larger])
    found = [each for each in (here, more, others) if each]
    yield from found
    if found:
        return
    for other in larger:
        places = [(f"--device {other.name} --nodes {each}", each, other) for each in _more(run, place)]
        if both := _alike(kinds, sizes, places):
            yield both
            return


def _alike(
    kinds: Sequence[tuple[Run, str]], sizes: Sizes, offers: Sequence[tuple[str, Place, Device]]
) -> str:
    """The first offer on which the run fits, else the first on which it does with a change; empty where none is."""
    for run, change in kinds:
        for words, place, device in offers:
            if _able(run, place, device) and _fits(run, sizes, place, device):
                return words + change
    return ""


def _more(run: Run, place: Place) -> Iterator[Place]:
    """Twice as many nodes again and again, as long as the batch has a window for each worker; then all it has."""
    most, nodes = run.windows // place.per_node, place.nodes
    while nodes < most:
        nodes = min(2 * nodes, most)
        if nodes * place.per_node % (run.compute.replicas or 1) == 0:
            yield replace(place, nodes=nodes)


def _larger(run: Run, device: Device, file: str) -> list[Device]:
    """GPUs with more memory, and the run's precision, the smallest first."""
    found = [each for each in tables.devices(file) if each.is_gpu and each.has(run.precision)]
    return sorted((each for each in found if each.memory > device.memory), key=lambda each: each.memory)


def _floor(run: Run, sizes: Sizes, place: Place, device: Device) -> Way:
    """The way that needs least where any number of workers share the run, in passes of one window."""
    chunked = run if run.compute.loss_chunk else _changed(run, {"compute.loss_chunk": CHUNK})
    many = replace(place, nodes=ANY_NUMBER * place.nodes)
    ways = (_largest(each, sizes, many, device) for each in _runs(chunked, sizes, many))
    return min(ways, key=lambda way: way.memory.needed)


def _changed(run: Run, changes: Mapping[str, object]) -> Run:
    """The run with these changes; as it is where it has them already, or can't have them."""
    try:
        made = run.replace(changes)
    except ConfigError:
        return run
    return run if made == run else made
