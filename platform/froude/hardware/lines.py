"""A plan for devices in words: the table, what is chosen, and the arithmetic number by number."""

from __future__ import annotations

from collections.abc import Iterator

from froude.config import Run
from froude.hardware.activations import of_a_block
from froude.hardware.roofline import ERROR, Sent
from froude.hardware.ways import DevicePlan, Way, offloaded

GB = 1e9
NOTE = "; of sending what is more than the computing beside it, all of it where there is none"
NARROWEST = 2048  # of the models whose speeds were compared
#: What no number of workers takes away from one, and what does.
LEFT = {
    ("gathered", "copies", "gradients", "reducing"): (
        "for tensors of a block or the embedding, which no strategy splits; make the model narrower, or its vocabulary "
        "smaller"
    ),
    ("activations", "a block again"): "for what one window leaves for backward; shorten the context",
    ("logits", "half of the logits", "evaluation"): "for one window's logits; shorten the context",
}


def told(plan: DevicePlan) -> list[str]:
    """The table of all ways, and the cheapest that fits or what would help."""
    device, place, run = plan.device, plan.place, plan.run
    lines = [
        f"{run.name}: {_short(plan.sizes.parameters)} parameters, {_short(run.tokens)} tokens, batch "
        f"{run.batch:,}, {run.precision}, {run.optimizer.name}, {plan.flops:.3g} FLOPs",
        f"on {place} {device.name} ({device.memory_gb:g} GB each), GB of a worker; needed is the most "
        "that is there at once, and a reserve",
        f"{'strategy':<9}{'checkpoint':<11}{'micro':>7}{'weights':>9}{'grads':>8}{'state':>8}{'activ.':>8}{'logits':>8}"
        f"{'buffers':>8}{'needed':>9}{'':>5}{'tokens/s':>14}{'MFU':>5}{'days':>10}{'dollars':>12}",
        *(_row(plan, way) for way in plan.ways),
    ]
    return [*lines, *notes(plan), *_choice(plan)]


def notes(plan: DevicePlan) -> list[str]:
    """What else is to be known, or to be set, before the run can train so."""
    place, run, lines = plan.place, plan.run, []
    if plan.sizes.estimated:
        lines.append(
            "activations are a guess by the parameters of a block: the model is not the package's own"
        )
    if plan.sizes.built_whole and place.workers > 1:
        host = f"each worker builds the whole model first, {offloaded(4.0 * plan.sizes.parameters, place)}"
        if run.compute.compile == "none":
            lines.append(
                f"{host}; one whose class has `initial` is made block by block (froude.train.api.Model)"
            )
        else:
            lines += [
                host,
                "its blocks are compiled, and tried, with all weights and gradients on each device, "
                f"{8 * plan.sizes.parameters / GB:,.1f} GB and more, which is not counted; leave `compute.compile` out "
                "where that is too much",
            ]
    if run.windows % place.workers:
        lines.append(
            f"{place.workers} workers do not share the batch's {run.windows:,} windows evenly, and wait for those with "
            "more; use a number of workers that divides them"
        )
    if plan.chosen and (slots := _slots(run, place.workers)):
        lines.append(f"set `slots` to {slots}: the run has {run.slots}")
    if plan.chosen and not run.min_workers <= place.workers <= run.max_workers:
        lines.append(f"set `workers` to {place.workers}: the run has {run.workers}")
    return lines


def _slots(run: Run, workers: int) -> str:
    """What slots that many workers need, empty where the run's do; they divide the batch's windows."""
    if run.windows % workers == 0:
        return f"a multiple of {workers}" if run.slots % workers else ""
    if run.slots >= workers:
        return ""
    return str(next((n for n in range(workers, run.windows) if run.windows % n == 0), run.windows))


def _row(plan: DevicePlan, way: Way) -> str:
    compute, memory = way.run.compute, way.memory
    sizes = [f"{memory.columns[kind] / GB:.1f}" for kind in memory.columns]
    columns = "".join(f"{text:>{width}}" for text, width in zip(sizes, (9, 8, 8, 8, 8, 8), strict=True))
    head = f"{compute.strategy:<9}{compute.checkpointing:<11}{memory.tokens:>7}{columns}{memory.needed / GB:>9.1f}"
    if not way.fits:
        return f"{head}{'no':>5}"
    return (
        f"{head}{'fits':>5}{way.step.tokens_per_second:>14,.0f}{way.step.mfu:>5.0%}{plan.days(way):>10.3g}"
        f"{_dollars(plan.cost(way)):>12}"
    )


def _choice(plan: DevicePlan) -> list[str]:
    way = plan.chosen
    if way is None:
        return [
            f"fits nowhere here; would fit: {'; '.join(plan.remedies)}" if plan.remedies else _nowhere(plan)
        ]
    compute = way.run.compute
    return [
        f"cheapest that fits: {compute.strategy}, checkpointing {compute.checkpointing}, micro_batch "
        f"{way.run.micro_batch or '0 (all at once)'}: {way.memory.needed / GB:.1f} of {plan.device.memory_gb:g} GB, "
        f"{way.step.seconds:.3g} s a step, {_time(plan.days(way))}, {_dollars(plan.cost(way), '$')} at "
        f"${plan.dollars:g} a device and hour",
        *(
            [f"offload takes {offloaded(way.memory.host, plan.place)}"]
            if way.run.compute.offload and plan.device.is_gpu
            else []
        ),
        f"bound by {way.step.bound}; times by a roofline, {_tested(plan)}; without evaluations, checkpoints and "
        "restarts",
    ]


def _tested(plan: DevicePlan) -> str:
    """How far the times are to be believed."""
    if not plan.device.is_gpu:
        return "which was not held against any CPU"
    if plan.run.model.width < NARROWEST:
        return f"tested from width {NARROWEST} on: a smaller model takes longer, by launches that are not counted"
    return f"within a factor of {ERROR} of the published speeds that set it"


def _time(days: float) -> str:
    """In days, and what is less than a tenth of one in minutes."""
    return f"{days:.3g} days" if days >= 0.1 else f"{days * 24 * 60:.3g} minutes"


def _nowhere(plan: DevicePlan) -> str:
    """Why nothing helps: what is left for a worker that shares with any number of others, or a batch of few windows."""
    assert plan.floor is not None
    memory, device = plan.floor.memory, plan.floor.device
    said = f"fits nowhere here, nor on {device.name}, the largest device"
    if plan.floor.fits:
        windows = f"{plan.run.windows:,} windows" if plan.run.windows > 1 else "one window"
        return f"{said}, with a worker for each of the batch's windows: it has {windows}; enlarge `batch`"
    there = memory.moments[memory.worst]
    most = max(LEFT, key=lambda names: sum(memory.items[name].bytes for name in names if name in there))
    return f"{said}, however many share it: each would need {memory.needed / GB:,.1f} GB, most {LEFT[most]}"


def explained(plan: DevicePlan, way: Way | None = None) -> list[str]:
    """The arithmetic of one way, the chosen or else the one that needs least: each line's numbers give its total."""
    way = way or plan.chosen or min(plan.ways, key=lambda each: each.memory.needed)
    memory, run = way.memory, way.run
    return [
        "",
        f"{run.compute.strategy}, checkpointing {run.compute.checkpointing}: {memory.tokens:,} tokens a pass, "
        f"{memory.passes} passes a step; x is times",
        *_bytes(plan, way),
        "a step's time:",
        *_seconds(plan, way),
    ]


def _bytes(plan: DevicePlan, way: Way) -> Iterator[str]:
    memory, run, fused = way.memory, way.run, plan.device.is_gpu
    digits = 3 if memory.peak > GB else 6
    shown = {item.name: round(item.bytes / GB, digits) for item in memory.items.values()}

    def line(name: str, size: float, how: str) -> str:
        return f"  {name:<18}{size:>{7 + digits}.{digits}f} GB{' = ' if size else ': '}{how}"

    for item in memory.items.values():
        yield line(item.name, shown[item.name], item.how)
    if not plan.sizes.estimated:
        yield "a block keeps of a token, in bytes; p: of products and attention, which selective keeps, too:"
        kept = of_a_block(run, fused=fused)
        for each in kept:
            yield f"  {each.bytes:>9,.0f} = {each.width:g} x {each.elements:,.0f}; {each.what}{', p' * each.product}"
        yield f"  {sum(each.bytes for each in kept):>9,.0f} in all, {sum(k.bytes for k in kept if k.product):,.0f} of p"
    yield "what is there at once:"
    # Totals are of the rounded numbers, so that they are what a reader adds up.
    totals = {moment: sum(shown[name] for name in names) for moment, names in memory.moments.items()}
    for moment, names in memory.moments.items():
        terms = " + ".join(f"{shown[name]:.{digits}f}" for name in names)
        yield line(moment, totals[moment], f"{terms}; {', '.join(names)}")
    reserved, peak = round(memory.reserve / GB, digits), totals[memory.worst]
    yield line("reserved", reserved, memory.reserved.how)
    yield line(
        "needed", peak + reserved, f"{peak:.{digits}f} + {reserved:.{digits}f}; {memory.worst}, reserved"
    )
    yield line("in the host", memory.host / GB, memory.in_host.how)


def _seconds(plan: DevicePlan, way: Way) -> Iterator[str]:
    step, run = way.step, way.run
    parts = {
        "products": step.products,
        "memory": step.traffic,
        "sending": step.sending,
        "update": step.updating,
    }
    for name, seconds in parts.items():
        yield f"  {name:<10}{seconds:>9.5g} s{' = ' if seconds else ': '}{step.how[name]}"
    whole, waits = step.seconds, "".join(f" + {_waited(each)}" for each in step.sent)
    computing = f"{step.products:.5g} + {step.traffic:.5g}"
    yield f"  {'a step':<10}{whole:>9.5g} s = {computing}{waits} + {step.updating:.5g}{NOTE * bool(waits)}"
    speed, days = step.tokens_per_second, plan.days(way)
    yield f"  {'speed':<10}{_five(speed):>9} tokens a second = {run.batch:,} tokens / {whole:.5g} s"
    each = step.model_flops * plan.place.workers / run.batch
    yield (
        f"  {'MFU':<10}{step.mfu:>9.5g} = {run.batch:,} tokens x {each:.5g} FLOPs / {plan.place.workers} workers / "
        f"{whole:.5g} s / {step.peak_flops:.5g}"
    )
    yield f"  {'days':<10}{days:>9.5g} = {run.tokens:,} tokens / {_five(speed)} a second / 86,400 seconds"
    yield (
        f"  {'dollars':<10}{_five(plan.cost(way)):>9} = {days:.5g} days x 24 hours x {plan.place.workers} devices x "
        f"${plan.dollars:g}"
    )


def _short(number: float) -> str:
    """Four digits of it, in the unit in which people count it."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.4g}{unit}"
    return f"{number:g}"


def _dollars(amount: float, sign: str = "") -> str:
    """Whole dollars; of less than ten the cents, too."""
    if 0 < amount < 0.01:
        return f"<{sign}0.01"
    return f"{sign}{amount:,.0f}" if amount >= 10 else f"{sign}{amount:.2f}"


def _waited(sent: Sent) -> str:
    """The seconds of sending that are waited for."""
    often = f"{sent.times} x " if sent.times > 1 else ""
    return f"{often}max({sent.seconds:.5g} - {sent.beside:.5g}, 0)" if sent.beside else f"{sent.seconds:.5g}"


def _five(number: float) -> str:
    """Five digits of it; all whole ones where people count, as the table has them."""
    return f"{number:,.0f}" if 1e4 <= number < 1e12 else f"{number:.5g}"
