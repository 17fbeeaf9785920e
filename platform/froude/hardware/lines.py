"""A plan for devices in words: the table, what is chosen, and the arithmetic number by number."""

from __future__ import annotations

from froude.hardware.activations import of_a_block
from froude.hardware.roofline import ERROR
from froude.hardware.ways import DevicePlan, Way

GB = 1e9
#: What no number of workers takes away from one, and what does.
LEFT = {
    (
        "gathered",
        "copies",
        "gradients",
        "reducing",
    ): "for tensors of a block or the embedding, which no strategy "
    "splits; make the model narrower, or its vocabulary smaller",
    ("activations", "a block again"): "for what one window leaves for backward; shorten the context",
    ("logits", "half of the logits", "evaluation"): "for one window's logits; shorten the context",
}


def told(plan: DevicePlan) -> list[str]:
    """The table of all ways, and the cheapest that fits or what would help."""
    device, place, run = plan.device, plan.place, plan.run
    lines = [
        f"{run.name}: {plan.sizes.parameters / 1e9:.4g}B parameters, {run.tokens / 1e9:.4g}B tokens, batch "
        f"{run.batch:,}, {run.precision}, {run.optimizer.name}",
        f"on {place} {device.name} ({device.memory_gb:g} GB each), GB of a worker; needed is less than the sum, since "
        "not all is there at once, and has a reserve",
        f"{'strategy':<9}{'checkpoint':<11}{'micro':>7}{'weights':>9}{'grads':>8}{'state':>8}{'activ.':>8}{'logits':>8}"
        f"{'buffers':>8}{'needed':>9}{'':>5}{'tokens/s':>11}{'MFU':>5}{'days':>9}{'dollars':>12}",
        *(_row(plan, way) for way in plan.ways),
    ]
    if plan.sizes.estimated:
        lines.append(
            "activations are a guess by the parameters of a block: the model is not the package's own"
        )
    if run.windows % place.workers:
        lines.append(
            f"{place.workers} workers do not share the batch's {run.windows:,} windows evenly, and wait for those with "
            "more; use a number of workers that divides them"
        )
    elif plan.chosen and run.slots % place.workers:
        lines.append(f"set `slots` to a multiple of {place.workers}: the run has {run.slots}")
    return [*lines, *_choice(plan)]


def _row(plan: DevicePlan, way: Way) -> str:
    compute, memory = way.run.compute, way.memory
    sizes = [f"{memory.columns[kind] / GB:.1f}" for kind in memory.columns]
    columns = "".join(f"{text:>{width}}" for text, width in zip(sizes, (9, 8, 8, 8, 8, 8), strict=True))
    head = f"{compute.strategy:<9}{compute.checkpointing:<11}{memory.tokens:>7}{columns}{memory.needed / GB:>9.1f}"
    if not way.fits:
        return f"{head}{'no':>5}"
    return (
        f"{head}{'fits':>5}{way.step.tokens_per_second:>11,.0f}{way.step.mfu:>5.0%}{plan.days(way):>9.3g}"
        f"{plan.cost(way):>12,.0f}"
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
        f"{way.step.seconds:.3g} s a step, {plan.days(way):.3g} days, ${plan.cost(way):,.0f} at "
        f"${plan.dollars:g} a device and hour",
        f"bound by {way.step.bound}; times by a roofline, within a factor of {ERROR} of the published speeds "
        "that set it; without evaluations, checkpoints and restarts",
    ]


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
    """The arithmetic of one way, the chosen or else the one that needs least, item by item."""
    way = way or plan.chosen or min(plan.ways, key=lambda each: each.memory.needed)
    memory, run, device = way.memory, way.run, plan.device
    lines = [
        "",
        f"{run.compute.strategy}, checkpointing {run.compute.checkpointing}: {memory.tokens:,} tokens a pass, "
        f"{memory.passes} passes a step",
    ]
    for item in memory.items.values():
        lines.append(f"  {item.name:<15}{item.bytes / GB:>9.3f} GB = {item.how}")
    if not plan.sizes.estimated:
        lines.append("a block keeps of a token, in bytes:")
        kept = of_a_block(run, fused=device.is_gpu)
        lines += [
            f"  {each.bytes:>9,.0f} = {each.width:g} x {each.elements:,.0f}  {each.what}" for each in kept
        ]
        lines.append(f"  {sum(each.bytes for each in kept):>9,.0f} in all")
    lines.append("what is there at once:")
    for moment, names in memory.moments.items():
        terms = " + ".join(f"{memory.items[name].bytes / GB:.3f}" for name in names)
        lines.append(f"  {moment:<15}{memory.at(moment) / GB:>9.3f} GB = {terms} ({', '.join(names)})")
    lines += [
        f"  needed         {memory.needed / GB:>9.3f} GB = {memory.peak / GB:.3f} when {memory.worst} + "
        f"{memory.reserve / GB:.3f} reserved",
        f"  in the host    {memory.host / GB:>9.3f} GB: the copy from which a checkpoint is written",
        "a step's time:",
        *(f"  {line}" for line in way.step.how),
        f"  {way.step.products:.3g} s products, {way.step.traffic:.3g} s memory, {way.step.sending:.3g} s sending"
        f"{' meanwhile' if way.step.overlaps else ''}, {way.step.updating:.3g} s update = {way.step.seconds:.3g} s",
        f"  {run.batch:,} tokens / {way.step.seconds:.3g} s = {way.step.tokens_per_second:,.0f} tokens a second; MFU "
        f"{way.step.model_flops:.3g} / {way.step.seconds:.3g} / {way.step.peak_flops:.4g} = {way.step.mfu:.1%}",
        f"  {run.tokens:.4g} tokens / {way.step.tokens_per_second:,.0f} / 86,400 = {plan.days(way):.3g} days; x 24 x "
        f"{plan.place.workers} x ${plan.dollars:g} = ${plan.cost(way):,.0f}",
    ]
    return lines
