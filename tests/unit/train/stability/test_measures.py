"""Soft-capped logits and z-loss: their formulas, and what they leave alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from froude.config import ConfigError, Run
from froude.train import api
from froude.train.exported import description
from froude.train.objective import minimised, summed_loss
from froude.train.trainer import Trainer

RUN = Run(
    tokens=768 * 2,
    batch=768,
    slots=12,
    eval_windows=16,
    model={"width": 32, "readout_sd": 3.0},
    optimizer={"lr": 2**-8},
)


def logits(run: Run, windows: torch.Tensor) -> Any:
    with torch.no_grad():
        return api.build_model(run)(windows[:, :-1]).double().numpy()


def test_capped_logits_are_the_cap_times_tanh() -> None:
    windows = Trainer(RUN).validation[:4]
    plain = logits(RUN, windows)
    capped = logits(RUN.replace({"model.softcap": 2.0}), windows)
    assert np.abs(plain).max() > 4
    np.testing.assert_allclose(capped, 2.0 * np.tanh(plain / 2.0), rtol=1e-5, atol=1e-6)


def test_exported_weights_say_that_logits_are_capped() -> None:
    said = description(RUN.replace({"model.softcap": 2.0}))
    assert said["softcap"] == 2.0
    assert "caps logits, 2 * tanh(logits / 2)" in said["note"]
    assert "softcap" not in description(RUN)


@pytest.mark.parametrize("reduction", ["fast", "exact"])
def test_the_z_loss_is_in_the_gradient_and_in_no_loss_that_is_told(reduction: str) -> None:
    plain, penal = (RUN.replace({"model.z_loss": weight, "reduction": reduction}) for weight in (0.0, 0.5))
    trainer = Trainer(penal)
    windows = trainer.draw(0).windows
    outputs = logits(RUN, windows)
    log_z = np.log(np.exp(outputs - outputs.max(-1, keepdims=True)).sum(-1)) + outputs.max(-1)
    picked = np.take_along_axis(outputs, windows[:, 1:, None].numpy(), -1)[..., 0]
    objective, entropy = minimised(trainer.model, windows, penal)
    assert float(entropy.detach()) == pytest.approx((log_z - picked).sum(), rel=1e-5)
    assert float(objective.detach()) == pytest.approx((log_z - picked + 0.5 * log_z**2).sum(), rel=1e-5)
    gradient = torch.autograd.grad(objective / RUN.batch, list(trainer.model.parameters()))
    norm = float(torch.cat([g.flatten() for g in gradient]).double().norm())
    told, other = trainer.step(penal, 0), Trainer(plain).step(plain, 0)
    assert told.loss == other.loss == pytest.approx((log_z - picked).mean(), rel=1e-5)
    assert told.grad_norm == pytest.approx(norm, rel=1e-4) != pytest.approx(other.grad_norm, rel=0.05)


def test_a_validation_loss_is_the_cross_entropy_alone() -> None:
    trainers = [Trainer(RUN.replace({"model.z_loss": weight})) for weight in (0.0, 0.5)]
    losses = {trainer.evaluate() for trainer in trainers}
    assert len(losses) == 1
    with torch.no_grad():
        total = sum(float(summed_loss(trainers[0].model, row[None], RUN)) for row in trainers[0].validation)
    assert losses.pop() == pytest.approx(total / (16 * 64), rel=1e-6)


def test_what_is_not_set_is_in_no_stored_run() -> None:
    content = RUN.to_dict()
    assert not {"softcap", "z_loss"} & content["model"].keys()
    assert "clipping" not in content["optimizer"]
    changed = [{"model.softcap": 30.0}, {"model.z_loss": 1e-4}, {"optimizer.clipping": "zclip"}]
    prints = {RUN.replace(change).fingerprint for change in [{}, *changed]}
    assert len(prints) == 4
    assert Run.from_dict(RUN.replace(changed[0]).to_dict()).model.softcap == 30.0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model.softcap": -1.0}, "`model.softcap` must be greater than or equal to 0, but got -1.0"),
        ({"model.z_loss": -1e-4}, "`model.z_loss` must be greater than or equal to 0, but got -0.0001"),
        (
            {"model.softcap": 30.0, "model.factory": "spiky:Spiky"},
            "`model.softcap` is for the package's own model, but got 30.0 with spiky:Spiky; cap the logits in its",
        ),
        ({"z_loss": 1e-4}, "unknown key `z_loss`; did you mean `model.z_loss`"),
    ],
)
def test_bad_settings_are_refused_before_anything_starts(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        RUN.replace(changes)
    assert said in str(refused.value)
