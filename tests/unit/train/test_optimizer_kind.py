"""An optimizer from outside the package: trained, kept in checkpoints, resumed bit for bit; no trace of it stays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cut_runs import trained
from own_optimizer import NADAM
from torch import nn

from froude.config import ConfigError, Run
from froude.optimizers import OPTIMIZERS, Spec
from froude.train.api import check_trust, material_of
from froude.train.optimizers import build, exactness
from froude.train.optimizers.composed import Rows
from froude.train.parallel import World
from froude.train.probe.updates import probe
from froude.train.trainer import Trainer, state_without_memory

#: Optimizers of which muP says nothing, or nothing of their decay.
WITHOUT_RULES = ("adafactor", "adam", "apollo", "galore_adamw", "rmsprop", "sgd", "sophia_g", "sophia_h")
STEPS = 6


@pytest.fixture
def nadam() -> Iterator[Spec]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(OPTIMIZERS, NADAM.name, NADAM)
        yield NADAM
    exactness._works_by_rows.cache_clear()
    torch.use_deterministic_algorithms(False)
    assert NADAM.name not in OPTIMIZERS


def run_with(name: str, **changes: object) -> Run:
    run = Run(
        name="large",
        tokens=128 * STEPS,
        batch=128,
        slots=2,
        eval_windows=16,
        model={"width": 16},
        norms_every=0,
    )
    return run.replace({"optimizer.name": name, "optimizer.lr": 1e-2, **changes})


@pytest.mark.long
@pytest.mark.usefixtures("nadam")
@pytest.mark.parametrize("reduction", ["fast", "exact"])
def test_it_trains_and_resumes_bit_for_bit(tmp_path: Path, reduction: str) -> None:
    run = run_with("nadam", reduction=reduction)
    assert trained(tmp_path / "cut", run, 2, 3, STEPS) == trained(tmp_path / "whole", run, STEPS)
    other = run_with("adamw", reduction=reduction)
    assert trained(tmp_path / "other", other, STEPS) != trained(tmp_path / "whole", run)


@pytest.mark.usefixtures("nadam")
@pytest.mark.parametrize("name", [*OPTIMIZERS, NADAM.name])
def test_a_spec_has_the_state_with_which_the_class_starts(name: str) -> None:
    sp = {"parametrization": "sp"} if name in WITHOUT_RULES else {}
    run = run_with(name, **sp, **{"schedule.name": "constant"})
    by_itself, from_state = Trainer(run), Trainer(run)
    from_state.state()
    for trainer in (by_itself, from_state):
        trainer.step(run, 0)
    ours, theirs = from_state.snapshot(), by_itself.snapshot()
    assert list(ours) == list(theirs)
    for key, tensor in theirs.items():
        assert torch.equal(ours[key], tensor), key
        assert (ours[key].dtype, ours[key].device) == (tensor.dtype, tensor.device)
    assert forms(theirs) == forms(state_without_memory(run))


def forms(state: dict[str, torch.Tensor]) -> dict[str, tuple[torch.dtype, torch.Size]]:
    return {name: (tensor.dtype, tensor.shape) for name, tensor in state.items()}


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        *(
            (name, {"precision": "bf16_stochastic"})
            for name, spec in OPTIMIZERS.items()
            if not (spec.average or spec.curvature)
        ),
        *(("muon", {"optimizer.clipping": clipping}) for clipping in ("zclip", "adagc")),
    ],
)
def test_what_a_checkpoint_has_is_known_without_memory(name: str, changes: dict[str, Any]) -> None:
    sp = {"parametrization": "sp"} if name in WITHOUT_RULES else {}
    run = run_with(name, **sp, **{"schedule.name": "constant", **changes})
    trainer = Trainer(run)
    trainer.step(run, 0)
    known = state_without_memory(run)
    assert forms(known) == forms(trainer.state())
    assert all(tensor.is_meta for tensor in known.values() if tensor.ndim)


@pytest.mark.slow
@pytest.mark.parametrize("reduction", ["fast", "exact"])
def test_by_its_import_path_it_is_trusted_first_and_trains_the_same_bits(
    tmp_path: Path, nadam: Spec, reduction: str
) -> None:
    path = "own_optimizer:NADAM"
    run = run_with(path, reduction=reduction)
    assert run.foreign == (path,)
    with pytest.raises(ConfigError, match=f"run only when trusted, but got {path}"):
        check_trust(run, trust=False)
    named = run_with(nadam.name, reduction=reduction)
    assert trained(tmp_path / "path", run, 2, STEPS) == trained(tmp_path / "name", named, STEPS)
    assert list(material_of(run).modules) == ["own_optimizer"]
    assert Run.from_dict(run.to_dict()) == run


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimizer.options": {"every": 2}}, "unknown option `optimizer.options.every`"),
        (
            {"optimizer.name": "own_optimizer:moments"},
            "the import path of a froude.optimizers.Spec, but own_optimizer:moments is",
        ),
        ({"optimizer.name": "nowhere:NADAM"}, "an import path must name an importable module"),
    ],
)
def test_what_is_wrong_with_an_imported_one_is_said_when_it_is_built(
    changes: dict[str, Any], message: str
) -> None:
    run = run_with("own_optimizer:NADAM").replace(changes)
    with pytest.raises(ConfigError, match=message):
        Trainer(run)


@pytest.mark.usefixtures("nadam")
def test_its_updates_are_probed_like_those_of_its_family() -> None:
    found = probe(run_with("nadam"), [])
    assert all(measured.undamped == pytest.approx(1, abs=0.2) for measured in found.tensors.values())


def test_auto_is_fused_where_a_class_has_it_and_one_worker_need_not_be_exact(nadam: Spec) -> None:
    model = Trainer(run_with("adamw")).model

    def defaults(run: Run, world: World | None = None) -> dict[str, Any]:
        (rows,) = build(run, model, world or World()).parts
        assert isinstance(rows, Rows)
        return rows.optimizer.defaults

    fast, exact = run_with("adamw"), run_with("adamw", reduction="exact")
    assert defaults(fast)["fused"]
    assert not defaults(fast, World(size=2))["fused"]
    assert not defaults(exact)["fused"]
    assert defaults(run_with("nadam"))["foreach"]
    model = nn.ParameterDict({"p": nn.Parameter(torch.ones(3))})
    model.kinds, model.blocks = lambda: {"p": "norm"}, list
    state = build(run_with("nadam"), model, World()).state()
    assert {name: value.tolist() for name, value in state.items()} == {
        "p.step": 0.0,
        "p.mu_product": 1.0,
        "p.exp_avg": [0.0] * 3,
        "p.exp_avg_sq": [0.0] * 3,
    }


def test_one_that_needs_all_of_the_model_has_one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPTIMIZERS, "nadam", replace(NADAM, unit="model"))
    assert run_with("nadam").max_workers == 1
    with pytest.raises(
        ConfigError, match="`workers` must be 1 with nadam, whose update needs all of the model at once"
    ):
        run_with("nadam", workers=(1, 2))


@pytest.mark.parametrize(
    "wrong, meant", [("nadam", " (did you mean 'adam'?)"), ("lbfgs", ""), (3, ""), (None, "")]
)
def test_what_is_not_registered_is_refused(wrong: object, meant: str) -> None:
    with pytest.raises(ConfigError) as error:
        Run(tokens=768, optimizer={"name": wrong})
    assert str(error.value) == (
        "`optimizer.name` must be 'adafactor', 'adam', 'adamh', 'adamw', 'adamw8bit', 'ademamix', 'apollo', "
        "'galore_adamw', 'lion', 'muon', 'muonh', 'normuon', 'rmsprop', 'schedule_free_adamw', 'sgd', 'shampoo', "
        f"'soap', 'sophia_g' or 'sophia_h'{meant}, but got {wrong!r}"
    )


def test_an_implementation_that_a_class_lacks_is_refused() -> None:
    with pytest.raises(ConfigError) as error:
        Run(tokens=768, parametrization="sp", optimizer={"name": "sgd", "implementation": "fused"})
    assert (
        str(error.value) == '`optimizer.implementation` of sgd must be "foreach" or "auto", but got "fused"'
    )
