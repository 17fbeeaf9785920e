"""Activation checkpointing: the same bits as without, in less memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from step_cost import Held
from torch import Tensor

from froude.config import ConfigError, Run
from froude.train import api
from froude.train.model import Transformer
from froude.train.objective import minimised
from froude.train.trainer import Trainer

KINDS = ("blocks", "sqrt", "selective")
BASE = Run(
    tokens=768 * 2,
    batch=768,
    slots=2,
    eval_windows=20,
    model={"width": 32, "depth": 5, "readout_sd": 1.0, "qk_norm": True},
    optimizer={"lr": 2**-7},
)
L, D, F_, H, N = 16, 64, 192, 4, 512


@pytest.fixture(autouse=True)
def as_before() -> Any:
    yield
    torch.use_deterministic_algorithms(False)


def bits(run: Run) -> tuple[list[Any], dict[str, Tensor]]:
    trainer = Trainer(run)
    results = [trainer.step(run, step) for step in range(run.steps)]
    return [(r.loss, r.grad_norm) for r in results] + [trainer.evaluate()], trainer.state()


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"reduction": "exact", "precision": "bf16", "micro_batch": 128}])
def test_a_run_has_the_same_bits_and_names(changes: dict[str, Any]) -> None:
    series, state = bits(BASE.replace(changes))
    for kind in KINDS:
        found, its = bits(BASE.replace({"compute.checkpointing": kind, **changes}))
        assert found == series, kind
        assert list(its) == list(state)
        assert all(torch.equal(its[name], tensor) for name, tensor in state.items()), kind


def kept(kind: str, precision: str, chunk: int = 64) -> tuple[int, int]:
    """Bytes that a forward pass leaves behind, and the most that there are until the end of backward."""
    run = Run(
        tokens=N,
        batch=N,
        slots=1,
        precision=precision,
        model={"width": D, "depth": L, "readout_sd": 1.0},
        optimizer={"lr": 2**-7},
        compute={"checkpointing": kind, "loss_chunk": chunk},
    )
    model = api.build_model(run)
    windows = torch.randint(256, (N // 64, 65), generator=torch.Generator().manual_seed(0))
    with Held() as held:
        sought, _ = minimised(model, windows, run)
        left = held.held
        sought.backward()
    return left, held.most


@pytest.mark.parametrize(
    ("kind", "precision", "a_token"),
    [
        ("none", "fp32", L * (48 * D + 16 * F_ + 4 * H + 8)),
        ("blocks", "fp32", L * 4 * D),
        ("sqrt", "fp32", L // 4 * 4 * D),
        ("selective", "fp32", L * (28 * D + 8 * F_ + 4 * H)),
        ("none", "bf16", L * (32 * D + 8 * F_ + 4 * H + 8)),
        ("blocks", "bf16", L * 4 * D),
        ("selective", "bf16", L * (16 * D + 4 * F_ + 4 * H)),
    ],
)
def test_what_blocks_leave_in_memory_is_as_planned(kind: str, precision: str, a_token: int) -> None:
    left, _ = kept(kind, precision)
    weights = (
        2 * L * (4 * D * D + 3 * D * F_) if (kind, precision) == ("none", "bf16") else 0
    )  # autocast's copies
    around = N * 16 * D + 256 * D * 4  # last norm, features and their gradient, the readout's
    assert weights + N * a_token <= left <= weights + 1.02 * N * a_token + around


def test_each_kind_needs_less_at_its_peak() -> None:
    """With gradients of the weights, which all have alike, of which most are there when most activations are gone."""
    peaks = [kept(kind, "fp32")[1] for kind in ("none", "selective", "blocks")]
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[0] > 6 * peaks[2]


class Dropping(Transformer):
    """With dropout, and any number of blocks that are one."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        for block in self.layers:
            block.register_forward_hook(
                lambda module, given, put_out: F.dropout(put_out, 0.2, module.training)
            )
            inner = block._added
            block._added = lambda x, y, inner=inner: inner(x, F.dropout(y, 0.2, self.training))


def test_what_is_drawn_is_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foreign_model.factory", Dropping)

    def trained(kind: str, seed: int) -> list[Any]:
        torch.manual_seed(seed)
        return bits(BASE.replace({"model.factory": "foreign_model:factory", "compute.checkpointing": kind}))[
            0
        ]

    expected = trained("none", 1)
    assert trained("none", 2) != expected
    assert [trained(kind, 1) for kind in KINDS] == [expected] * 3


def test_who_watches_a_block_sees_each_pass_once() -> None:
    def seen(kind: str) -> list[float]:
        run, norms = BASE.replace({"compute.checkpointing": kind}), list[float]()
        model: Any = api.build_model(run)
        for block in model.blocks():
            block.register_forward_hook(
                lambda module, given, put_out: norms.append(float(put_out.detach().norm()))
            )
        windows = torch.randint(256, (2, 65), generator=torch.Generator().manual_seed(0))
        minimised(model, windows, run)[0].backward()
        return norms

    assert len(seen("none")) == 5
    assert seen("blocks") == seen("selective") == seen("none")


def test_a_model_without_a_door_for_it_has_no_segments() -> None:
    run = BASE.replace({"model.factory": "foreign_model:factory"})
    expected, found = bits(run), bits(run.replace({"compute.checkpointing": "blocks"}))
    assert found[0] == expected[0]
    said = (
        '`compute.checkpointing` = "sqrt" needs a model that calls its blocks by `in_turn`, but foreign_model:factory '
        'has none; use "blocks"'
    )
    with pytest.raises(ConfigError, match=said):
        Trainer(run.replace({"compute.checkpointing": "sqrt"}))
    with pytest.raises(
        ConfigError, match=r"`compute.checkpointing` must be 'none', 'blocks', .*, but got 'every'"
    ):
        BASE.replace({"compute.checkpointing": "every"})
