"""What a file of exported weights must say of itself, so that another program computes the same logits from it."""

from __future__ import annotations

import math
import os
from typing import Any

from froude.config import Run
from froude.mixtures import Part
from froude.train.parametrization import logit_multiplier, multipliers


def description(run: Run) -> dict[str, Any]:
    """The run in plain JSON types: whose model, how parametrized, trained on what, and what multiplies in its forward.

    `multipliers` is None for a factory from outside the package, and `note` says what is not known.
    """
    shape, data = run.model, run.data
    return {
        "fingerprint": run.fingerprint,
        "factory": shape.factory,
        "parametrization": run.parametrization,
        "width": shape.width,
        "base_width": shape.base_width,
        "multipliers": multipliers(run) if _own(run) else None,
        **({"softcap": shape.softcap} if shape.softcap else {}),
        **({"architecture": shape.architecture} if shape.architecture else {}),
        "precision": run.precision,
        "corpus": {"source": data.source, "file": os.path.basename(data.path), "sha256": data.sha256}
        | ({"parts": [_part(part) for part in data.parts], "mixture": data.mixture()} if data.parts else {}),
        "note": caution(run),
    }


def _part(part: Part) -> dict[str, str]:
    file = os.path.basename(part.path)
    return {"name": part.name, "source": part.source, "file": file, "sha256": part.sha256}


def caution(run: Run) -> str:
    """What must be known before the logits of the weights alone are trusted; empty where there is nothing."""
    shape, factor = run.model, logit_multiplier(run)
    sizes = f"{run.width_rules.plain_label} at width {shape.width} with base width {shape.base_width}"
    if not _own(run):
        rule = f" ({sizes} asks for logits times {factor:.6g})" if factor != 1 else ""
        return (
            f"the factors in the forward pass of {shape.factory} are neither in the weights nor known here{rule}; load "
            "the weights into that class, or apply its factors"
        )
    found = [f"logits by {factor:.6g} ({sizes})"] if factor != 1 else []
    scale = multipliers(run)["attention"]
    if not math.isclose(scale, 1 / math.sqrt(shape.head_dim)):
        found.append(f"attention scores by {scale:.6g} (instead of 1/sqrt(head_dim))")
    if (added := multipliers(run)["residual"]) != 1:
        found.append(f"what each layer adds by {added:.6g}")
    does = [f"multiplies {' and '.join(found)}"] if found else []
    if cap := shape.softcap:
        does.append(f"caps logits, {cap:g} * tanh(logits / {cap:g})")
    if not does:
        return ""
    return (
        f"the weights alone do not give this model's logits: its forward pass {' and '.join(does)}; whoever loads the "
        "weights must do so, too"
    )


def _own(run: Run) -> bool:
    return run.model.factory.startswith("froude.")
