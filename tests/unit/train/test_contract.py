"""The probe: models and corpora that break their contract are refused with rule, value and remedy."""

from __future__ import annotations

import pytest
import torch

from froude.config import ConfigError, Run
from froude.train import api
from froude.train.data.soundness import check_corpus
from froude.train.probe import contract, soundness
from froude.train.trainer import Trainer

RUN = Run(
    name="probed",
    model={"factory": "unsound:Attention", "width": 32, "context": 64},
    data={"source": "foreign_model:Counting"},
    reduction="exact",
    slots=2,
    batch=256,
    tokens=2560,
    eval_windows=96,
)


def with_fault(fault: str, **changes: object) -> Run:
    return RUN.replace({"model.options": {"fault": fault}, **changes})


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (
            "unmasked",
            r"must not depend on later tokens, but unsound:Attention .*; give its attention a causal mask",
        ),
        ("next_token", r"must not depend on later tokens, but .* causal mask"),
        ("blind", r"must depend on the tokens, but .*; use the tokens"),
        ("dropout", r'"exact" must compute the same twice, but .* differ by up to .*; set its dropout to 0'),
        (
            "batch_norm",
            r"must be its parameters.* changes buffer norm.running_mean.*; use a layer without running",
        ),
        (
            "batch_statistics",
            r"not depend on the other sequences of its batch, but .*; normalise within a sequence",
        ),
        ("batch_mean", r"not depend on the other sequences of its batch"),
        ("counter", r"changes buffer seen in training"),
        (
            "unseeded",
            r"the same whenever it is built for a run, but .* differs in inner.weight when built twice",
        ),
        ("unused", r"a gradient for each parameter, but .* has none for spare.weight, spare.bias; use them"),
        (
            "tuple",
            r"must return logits \[windows, context, vocab\], but .* returned tuple; return the logits alone",
        ),
        ("dict", r"returned dict of logits, loss; return the logits alone"),
        ("narrow", r"returned torch.float32 \[4, 64, 255\]; set `model.vocab` to 255"),
        ("infinite", r"must be finite, but .* returned some that are not"),
        (
            "experts",
            r"must be dense, since .*, but .* has experts.weight, experts.bias; forecast a dense model",
        ),
        (
            "active",
            r"must be dense, since .*, but .* has 1000 active of \d+ parameters; forecast a dense model",
        ),
        ("kind", r"kinds\(\) must say .* calls inner.weight 'hiden'; did you mean 'hidden'\?"),
    ],
)
def test_an_unsound_model_is_refused(fault: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        contract.check([with_fault(fault)])
    assert len(str(error.value)) < 400


def test_a_scalar_is_refused_where_rows_are_divided_or_an_update_needs_them() -> None:
    run, said = with_fault("scalar"), "must have rows, but temperature is a scalar; give it the shape"
    with pytest.raises(ConfigError, match=said):
        contract.check([run.replace(workers=(1, 2))])
    with pytest.raises(ConfigError, match=said):
        Trainer(run.replace({"optimizer.name": "adafactor", "parametrization": "sp"}))


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        ("unmasked", "causal"),
        ("dropout", "random"),
        ("batch_norm", "state"),
        ("batch_mean", "independent"),
        ("unused", "gradients"),
        ("tuple", "forward"),
    ],
)
def test_a_check_is_passed_over_by_name(fault: str, check: str) -> None:
    found = contract.check([with_fault(fault)], [check])
    assert found.skipped == (check,)
    assert f"skipped: {check}" in found.lines()[0]


def test_an_unknown_check_is_refused_and_nothing_skipped_is_said_to_be_sound() -> None:
    with pytest.raises(ConfigError, match=r"one of corpus, forward, .*causal, but got 'casual'"):
        contract.check([RUN], ["casual"])
    found = contract.check([RUN], ["corpus", "forward"])
    assert (found.corpora, found.models) == (0, 0)
    assert found.lines() == ["probe: nothing looked at; skipped: corpus, forward"]


@pytest.mark.parametrize("fault", ["", "frozen"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_sound_model_is_probed_once_and_leaves_no_trace(fault: str, precision: str) -> None:
    torch.manual_seed(3)
    torch.use_deterministic_algorithms(False)  # whatever another test has left
    before = torch.get_rng_state()
    run = with_fault(fault, precision=precision)
    assert contract.check([run]).models == 1
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.are_deterministic_algorithms_enabled()
    Trainer(run).step(run, 0)
    torch.use_deterministic_algorithms(False)


def test_a_constant_buffer_is_handled_and_said() -> None:
    (note,) = contract.check([with_fault("constant")]).notes
    assert "constant buffers (mask)" in note
    assert "no checkpoint or export" in note


def test_dropout_is_left_to_runs_that_promise_no_bits_unless_the_target_does() -> None:
    fast = with_fault("dropout", reduction="fast")
    assert contract.check([fast]).models == 1
    large = with_fault("dropout", **{"model.width": 64})
    with pytest.raises(ConfigError, match="compute the same twice"):
        contract.check([fast, large])


def test_the_package_s_model_with_dropout_is_refused_in_an_exact_run() -> None:
    with pytest.raises(ConfigError, match="unsound:Drops gave logits that differ"):
        contract.check([RUN.replace({"model.factory": "unsound:Drops"})])


def test_a_model_that_takes_whole_contexts_only_is_given_one() -> None:
    long = RUN.replace(
        {"model.factory": "unsound:WholeContext", "model.context": 512}, batch=1024, tokens=2048
    )
    assert soundness.LONGEST < long.model.context
    assert contract.check([long]).models == 1


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        ("unsound:nothing", r"unsound:nothing returned NoneType, which lacks .*; see froude.train.api.Model"),
        (
            "unsound:raises",
            r"factory unsound:raises must not raise, but got KeyError: 'n_embd' \(at .*unsound.py:\d+\)",
        ),
    ],
)
def test_a_factory_that_makes_no_model_is_named_with_the_user_s_line(factory: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        contract.check([RUN.replace({"model.factory": factory})])


def test_what_forward_raises_is_said_with_the_user_s_line() -> None:
    run = RUN.replace({"model.factory": "foreign_model:factory", "model.options": {"fail": True}})
    with pytest.raises(
        ConfigError, match=r"RuntimeError: this model was told to fail \(at .*foreign_model.py:\d+\)"
    ):
        contract.check([run])


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (
            "Beyond",
            r"from 0 to 255, below `model.vocab`, but window 499 of the train split of .* holds 259; set .* 260",
        ),
        (
            "Floats",
            r"integers \[1, context \+ 1\] = \[1, 65\], but that of the train split .* float64 \[1, 65\]",
        ),
        ("Short", r"int64 \[1, 64\]"),
        ("Shifting", r"the same window each time"),
        (
            "Missing",
            r"must not raise, but got FileNotFoundError: .*no/such/tokens.bin.* \(at .*unsound.py:\d+\)",
        ),
    ],
)
def test_an_unsound_corpus_is_refused(source: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        contract.check([RUN.replace({"data.source": f"unsound:{source}"})])


def test_too_few_validation_windows_are_said() -> None:
    (note,) = check_corpus(RUN.replace(eval_windows=768))
    assert "has 500 windows, fewer than the 768 of `eval_windows`" in note
    assert not check_corpus(RUN)


def test_an_id_that_the_probe_missed_is_an_error_that_names_it_in_training() -> None:
    run = RUN.replace({"data.source": "unsound:Beyond", "model.factory": "foreign_model:factory"})
    with pytest.raises(
        ConfigError, match=r"below `model.vocab`, but the validation split of unsound:Beyond holds 259"
    ):
        Trainer(run.replace(eval_windows=500))
    trainer = Trainer(run.replace(eval_windows=2))
    with pytest.raises(ConfigError, match=r"the training split of unsound:Beyond holds 259"):
        all(trainer.draw(batch) for batch in range(500))


def test_the_smallest_run_of_a_shape_stands_for_all_and_a_target_too_large_is_said(monkeypatch) -> None:
    wide = RUN.replace({"model.width": 64})
    other = RUN.replace({"model.options": {"heads": 2}, "model.width": 48})
    found, notes = contract.smallest([wide, RUN, other])
    assert [run.model.width for run in found] == [32, 48]
    assert not notes
    monkeypatch.setattr(contract, "PARAMETERS", contract._size(RUN))
    found, (note,) = contract.smallest([wide, RUN, other])
    assert [run.model.width for run in found] == [32]
    assert "1 of 2 models, from unsound:Attention of width 48 on" in note


def test_the_package_s_own_model_is_sound_in_each_of_its_forms() -> None:
    base = Run(tokens=768, reduction="exact")
    forms = [
        base.replace({"model.tied": tied, "model.qk_norm": norm, "parametrization": p})
        for tied in (False, True)
        for norm in (False, True)
        for p in ("mup", "sp")
    ]
    assert contract.check(forms).models == 8
    assert api.build_model(base).readout.count_nonzero() == 0  # behind which nothing would be seen
