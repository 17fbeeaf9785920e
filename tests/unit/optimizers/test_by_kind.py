"""Rates by kind of parameter, and decay of hidden matrices against width: the groups that come of them."""

from __future__ import annotations

import itertools
from typing import Any, get_args

import numpy as np
import pytest
from foreign_model import Bigram
from torch import nn

from froude.config import ConfigError, Run
from froude.parametrizations import ANY, PARAMETRIZATIONS, Kind, Powers, able
from froude.parametrizations.parametrization import DECAY_WIDTHS
from froude.promote.diagnosis.causes import causes
from froude.promote.diagnosis.diagnose import examine
from froude.space import Grid, Space, Trial
from froude.train import api
from froude.train.optimizers import build
from froude.train.optimizers.owners import Owners
from froude.train.parallel import World
from froude.train.parametrization import scales
from froude.train.probe.contract import smallest
from froude.train.speed.timing import model_size

MODEL = {"width": 64, "base_width": 16, "depth": 6, "base_depth": 2, "context": 16}  # m = 4, m_L = 3
#: A run of each family of optimizers that has rules under muP and decays its matrices.
FAMILIES: dict[str, dict[str, Any]] = {
    "Adam": {"name": "adamw"},
    "sign": {"name": "lion"},
    "spectral": {"name": "muon"},
    "spectral of one RMS": {"name": "muon", "options": {"scale": "match_rms"}},
}
#: Rate times decay of a kind at m = 4 over that at m = 1, by the rule for hidden matrices.
RULES = {"constant": 1.0, "inverse_sqrt": 1 / 2, "inverse": 1 / 4}


def run_of(**changes: Any) -> Run:
    return Run(tokens=64 * 100, batch=64, model=MODEL).replace(changes)


def test_each_family_is_here() -> None:
    spheres = {name for name in PARAMETRIZATIONS["mup"].table if "sphere" in name}
    assert {*FAMILIES, *spheres} == set(PARAMETRIZATIONS["mup"].table)
    assert set(RULES) == set(DECAY_WIDTHS)


@pytest.mark.parametrize("parametrization", ["mup", "depth_mup", "completep"])
@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("muon", {"scale": "original"}, 'muon of scale "original"'),
        ("muon", {"scale": "match_rms"}, 'muon of scale "match_rms"'),
        ("normuon", {}, "normuon"),
        ("muonh", {}, "muonh"),
    ],
)
def test_heads_of_their_own_need_a_scale_that_holds_over_width(
    name: str, options: dict[str, Any], said: str, parametrization: str
) -> None:
    heads = {"name": name, "options": {**options, "heads": True}}
    run = run_of(optimizer=heads, parametrization=parametrization)
    with pytest.raises(
        ConfigError, match=f"heads` must be false under {parametrization} with {said}, .* use muon"
    ):
        Space("s", 0, (Grid("g", lambda rows: [Trial("t", (run,))], role="loss_law"),), run).check_new()
    able.check_heads(PARAMETRIZATIONS["sp"], run.optimizer)
    muon = run_of(optimizer={"name": "muon", "options": {"heads": True}}, parametrization=parametrization)
    able.check_heads(muon.width_rules, muon.optimizer)


@pytest.mark.parametrize(("key", "value"), [("warmup", 10**400), ("alpha", -(10**400))])
def test_a_whole_number_beyond_any_use_is_refused(key: str, value: int) -> None:
    with pytest.raises(ConfigError, match=rf"`optimizer\.options\.{key}` must have at most 63 bits, but has"):
        run_of(optimizer={"name": "ademamix", "options": {key: value}})


@pytest.mark.parametrize(("family", "rule"), [*itertools.product(FAMILIES, RULES)])
@pytest.mark.parametrize("parametrization", ["mup", "completep"])
def test_rate_times_decay_follows_the_rule_and_nothing_else_does(
    family: str, rule: str, parametrization: str
) -> None:
    run = run_of(optimizer=FAMILIES[family], parametrization=parametrization)
    ruled = run.replace({"optimizer.decay_width": rule})
    assert run.optimizer.family() == family
    for kind, place in itertools.product(get_args(Kind), (True, False)):
        usual, found = (scales(each, kind, in_block=place) for each in (run, ruled))
        deep = 3.0 ** (run.width_rules.blocks.lr if place else 0.0)
        if kind == "hidden":
            assert found.lr * found.weight_decay == pytest.approx(RULES[rule] * deep)
        else:
            assert found.weight_decay == usual.weight_decay == (kind == "readout")
        assert (found.init, found.lr, found.eps) == (usual.init, usual.lr, usual.eps)
    groups = build(ruled, api.build_model(ruled, "meta"), World()).param_groups
    decays = {round(group["peak"] * group["weight_decay"], 12) for group in groups if group["weight_decay"]}
    rates = run.optimizer.lr * 0.1, run.optimizer.by_rows.lr * 0.1
    deep = 3.0**run.width_rules.blocks.lr
    assert decays == {round(rates[0] * RULES[rule] * deep, 12), round(rates[1], 12)}


def test_a_rule_of_width_is_refused_where_width_has_none() -> None:
    with pytest.raises(
        ConfigError, match=r'`optimizer\.decay_width` must be "constant" under sp, .* "inverse"'
    ):
        run_of(parametrization="sp", **{"optimizer.decay_width": "inverse"})
    table = PARAMETRIZATIONS["sp"].table[ANY]
    assert table.get("hidden", Powers()) == PARAMETRIZATIONS["sp"].powers("hidden", "Adam")


@pytest.mark.slow
def test_a_diagnosis_expects_the_rule_that_the_run_names() -> None:
    model = {"depth": 1, "context": 32, "head_dim": 4, "base_width": 16}
    base = Run(
        tokens=256 * 100, batch=256, model=model, optimizer={"decay_width": "inverse", "timescale": 0.5}
    )
    found = causes(examine([base.replace({"model.width": width}) for width in (16, 32, 64)]))
    assert not [cause for cause in found if cause.name == "weight_decay"]


KINDS = {"embedding": 2.0, "hidden": 3.0, "readout": 0.5, "norm": 0.25}


def settings_of(run: Run) -> dict[str, list[tuple[float, float]]]:
    """Rate, and rate times decay, of the parameters and matrices of each kind."""
    model = api.build_model(run, "meta")
    kinds = {parameter: model.kinds()[name] for name, parameter in model.named_parameters()}
    found: dict[str, list[tuple[float, float]]] = {}
    for part in build(run, model, World()).parts:
        if isinstance(part, Owners):
            groups = [(each.matrix.group, each.matrix.parameter) for each in part.owned]
        else:
            groups = [(group, parameter) for group in part.param_groups for parameter in group["params"]]
        for group, parameter in groups:
            pair = group["peak"], group["peak"] * group["weight_decay"]
            found.setdefault(kinds[parameter], []).append(pair)
    return {kind: sorted(pairs) for kind, pairs in found.items()}


@pytest.mark.parametrize("optimizer", ["adamw", "lion", "muon", "muonh", "soap"])
def test_a_kinds_rate_is_multiplied_and_its_decay_a_step_stays(optimizer: str) -> None:
    run = run_of(optimizer={"name": optimizer, "decay_embeddings": True})
    multiplied = run.replace({f"optimizer.multipliers.{kind}": factor for kind, factor in KINDS.items()})
    before, after = settings_of(run), settings_of(multiplied)
    assert set(before) == set(after) == set(KINDS)
    for kind, factor in KINDS.items():
        assert np.array(after[kind]) == pytest.approx(np.array(before[kind]) * [factor, 1.0])


def test_a_kind_that_is_none_or_a_factor_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError) as error:
        run_of(**{"optimizer.multipliers.embeding": 2.0})
    assert str(error.value) == (
        "`optimizer.multipliers` must be by kind, embedding, hidden, readout, norm or bias, but got 'embeding' "
        "(did you mean 'embedding'?)"
    )
    with pytest.raises(
        ConfigError, match=r"`optimizer\.multipliers\.norm` must be greater than 0, but got 0"
    ):
        run_of(**{"optimizer.multipliers.norm": 0})


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_a_kind_that_the_model_does_not_have_is_refused_before_anything_starts(factor: float) -> None:
    run = run_of(**{"model.tied": True, "model.depth": 1})
    wrong = run.replace({"optimizer.multipliers.readout": factor})
    message = (
        r"`optimizer\.multipliers\.readout` needs parameters of that kind, .* it has embedding, norm, hidden"
    )
    model_size(run)  # `froude plan`, which builds each shape once
    for look in (api.build_model, model_size, lambda run: smallest([run, wrong])):
        with pytest.raises(ConfigError, match=message):
            look(wrong)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"momentum": 0.9}, "unknown key `optimizer.momentum`; did you mean `optimizer.beta1`?"),
        ({"timescales": 0.9}, "unknown key `optimizer.timescales`; did you mean `optimizer.timescale`?"),
        ({"name": "muonn"}, "(did you mean 'muon'?), but got 'muonn'"),
        (
            {"name": "muon", "options": {"nestrov": True}},
            "unknown option `optimizer.options.nestrov`; muon has",
        ),
        (
            {"rest": {"beta_2": 0.9}},
            "unknown key `optimizer.rest.beta_2`; did you mean `optimizer.rest.beta2`?",
        ),
    ],
)
def test_a_wrong_word_leads_to_the_right_one(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        run_of(optimizer=settings)
    assert message in str(error.value)


def test_a_wrong_schedule_leads_to_the_right_one() -> None:
    with pytest.raises(ConfigError, match=r"\(did you mean 'wsd'\?\), but got 'wds'"):
        run_of(schedule={"name": "wds"})


class Claimed(Bigram):
    """Kinds with a change: a name more, a name less, none that is a hidden matrix, or one tensor by two names."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.change = run.model.options["change"]
        if self.change == "twice":
            self.again = nn.Linear(1, 1, bias=False)
            self.again.weight = self.inner.weight

    def kinds(self) -> dict[str, str]:
        kinds: dict[str, str] = super().kinds()
        if self.change == "less":
            del kinds["inner.bias"]
        if self.change in ("more", "twice"):
            kinds["again.weight"] = "hidden"
        return dict.fromkeys(kinds, "embedding") if self.change == "flat" else kinds


@pytest.mark.parametrize(("change", "name"), [("less", "inner.bias"), ("more", "again"), ("twice", "again")])
def test_a_parameter_has_one_kind(change: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foreign_model.Claimed", Claimed, raising=False)
    run = run_of(**{"model.factory": "foreign_model:Claimed", "model.options.change": change})
    with pytest.raises(ConfigError, match=rf"must name each parameter of \S+ once, but differs in {name}"):
        api.build_model(run, "meta")


def test_an_optimizer_of_matrices_needs_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foreign_model.Claimed", Claimed, raising=False)
    flat = {"model.factory": "foreign_model:Claimed", "model.options.change": "flat"}
    run = run_of(**flat, optimizer={"name": "muon"})
    with pytest.raises(
        ConfigError, match="muon works on hidden matrices, but foreign_model:Claimed has none"
    ):
        model_size(run)
