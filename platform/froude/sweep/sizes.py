"""A run's model and optimizer in the numbers of `froude.hardware`; the model is built without memory."""

from __future__ import annotations

from froude.config import ConfigError, Run
from froude.config import Model as Shape
from froude.hardware.sizes import Sizes
from froude.user_code import load


def sizes_of(run: Run) -> Sizes:
    """Count the run's model; ConfigError for one that a command trains, of which nothing here knows."""
    from froude.train.api import build_model
    from froude.train.memory import weights
    from froude.train.optimizers import state_bytes

    if run.trainer.command:
        raise ConfigError(
            f"a plan for a device needs the model, but {run.name} is trained by a command, which alone knows what it "
            "takes; leave --device out"
        )
    model = build_model(run, "meta")
    kinds = model.kinds()  # type: ignore[operator]
    named = dict(model.named_parameters())
    blocks = [sum(p.numel() for p in block.parameters()) for block in model.blocks()]  # type: ignore[operator]
    readouts = [name for name, kind in kinds.items() if kind == "readout"]
    embeddings = [name for name, kind in kinds.items() if kind == "embedding"]
    tied = not readouts
    readout = sum(named[name].numel() for name in (readouts or embeddings))
    products = sum(p.numel() for name, p in named.items() if p.ndim == 2 and name not in embeddings)
    spec = run.optimizer.spec
    implementation = run.optimizer.implementation
    foreach = "foreach" in spec.implementations and implementation != "fused"
    return Sizes(
        parameters=sum(p.numel() for p in named.values()),
        blocks=sum(blocks),
        block=max(blocks, default=0),
        depth=len(blocks),
        products=products + readout * tied,
        readout=readout,
        largest=max(p.numel() for p in named.values()),
        state_bytes=state_bytes(run, model),
        flops_per_token=float(model.flops_per_token()),  # type: ignore[operator]
        passes=spec.passes(run.optimizer),
        update="matrices" if spec.unit in ("matrix", "tensor") else "rows" if foreach else "none",
        estimated=run.model.factory != Shape.model_fields["factory"].default,
        built_whole=not weights.come_late(run, load(run.model.factory), workers=2),
    )
