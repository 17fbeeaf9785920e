"""The training step and the trial: golden numbers, branches, divergence, accumulation, foreign models."""

import math

import numpy as np
import pytest
import torch

from froude.checkpoint.run_store import RunStore
from froude.config import ConfigError, Run
from froude.space import Trial
from froude.store import Location
from froude.study import Study
from froude.train.api import Unsupervised, material_of
from froude.train.loop import Loop
from froude.train.observers import Observer
from froude.train.trainer import Trainer
from froude.train.trial import InMemory, run_trial
from froude.train.worker import run_worker

BASE = Run(
    tokens=7680,
    batch=768,
    slots=12,
    eval_windows=64,
    model={"width": 32},
    optimizer={"lr": 2**-8},
    schedule={"warmup_tokens": 1536},
)

#: Losses and gradient norms of BASE's ten steps in fp32: a change here is a change of the training step.
GOLDEN_LOSS = [
    5.545179,
    5.517033,
    5.352538,
    4.988216,
    4.646106,
    4.310107,
    4.079555,
    3.8583,
    3.627032,
    3.548168,
]
GOLDEN_NORM = [
    1.185839,
    1.228944,
    1.760476,
    2.590304,
    2.689978,
    2.630385,
    2.450617,
    2.349983,
    2.07264,
    2.059604,
]


def losses(run):
    return [row["loss"] for row in run_trial([run], trial="t").steps]


def test_ten_steps_give_the_golden_numbers():
    rows = run_trial([BASE], trial="t").steps
    assert [row["loss"] for row in rows] == pytest.approx(GOLDEN_LOSS, rel=1e-4)
    assert [row["grad_norm"] for row in rows] == pytest.approx(GOLDEN_NORM, rel=1e-3)


def test_the_same_run_twice_is_the_same_bits():
    assert losses(BASE) == losses(BASE)
    assert losses(BASE) != losses(BASE.replace(seed=1))


def test_neither_slots_nor_micro_batches_change_the_training():
    whole = losses(BASE)
    assert losses(BASE.replace(slots=3)) == whole
    assert losses(BASE.replace(micro_batch=3 * 64)) == pytest.approx(whole, rel=1e-5)


def test_bf16_is_close_to_fp32():
    assert losses(BASE.replace(precision="bf16")) == pytest.approx(losses(BASE), abs=0.03)


def test_each_branch_equals_the_run_trained_alone():
    """One trunk with three tails costs less and gives the same bits as three runs."""
    runs = [BASE.replace(tokens=768 * n, name=f"n{n}") for n in (5, 8, 12)]
    together = run_trial(runs, trial="trunk")
    assert [row["run"] for row in together.trials] == ["n5", "n8", "n12"]
    for run, row in zip(runs, together.trials, strict=True):
        alone = run_trial([run], trial="alone")
        assert row["loss"] == alone.trials[0]["loss"]
        mine = [r["loss"] for r in together.steps if r["run"] == run.name]
        assert mine == [r["loss"] for r in alone.steps]


def test_branches_stop_at_the_target():
    runs = [BASE.replace(tokens=768 * n, name=f"n{n}") for n in (5, 8, 12)]
    losses_ = [row["loss"] for row in run_trial(runs, trial="t").trials]
    stopped = run_trial(runs, trial="t", stop_loss=(losses_[0] + losses_[1]) / 2)
    assert [row["loss"] for row in stopped.trials] == losses_[:2]


def test_a_diverged_run_is_a_row_without_a_loss():
    run = BASE.replace({"optimizer.lr": 1e6, "schedule.warmup_tokens": 0})
    (row,) = run_trial([run], trial="t").trials
    assert row["status"] == "diverged"
    assert row["loss"] is None


def test_a_step_that_is_not_finite_changes_nothing():
    trainer = Trainer(BASE)
    trainer.step(BASE, 0)
    before = trainer.snapshot()
    for parameter in trainer.model.parameters():
        if parameter.ndim == 1:
            parameter.data[0] = math.nan
    poisoned = trainer.snapshot()
    assert not trainer.step(BASE, 1).finite
    for name, tensor in trainer.snapshot().items():
        assert torch.equal(tensor.nan_to_num(), poisoned[name].nan_to_num())
    trainer.restore(before)
    assert trainer.step(BASE, 1).finite


def test_norms_and_embeddings_do_not_decay():
    trainer = Trainer(BASE.replace({"optimizer.lr": 1e-2, "optimizer.weight_decay": 50.0}))
    kinds = trainer.model.kinds()
    decayed = {id(p) for g in trainer.optimizer.param_groups if g["weight_decay"] > 0 for p in g["params"]}
    for name, parameter in trainer.model.named_parameters():
        assert (id(parameter) in decayed) == (kinds[name] in ("hidden", "readout"))


def test_progress_counts_every_step_once():
    seen = []
    runs = [BASE.replace(tokens=768 * n, name=f"n{n}") for n in (5, 10)]
    run_trial(runs, trial="t", progress=lambda done, total: seen.append((done, total)))
    assert [done for done, _ in seen] == list(range(1, seen[-1][1] + 1))
    assert len({total for _, total in seen}) == 1


def test_a_foreign_model_and_source_train_through_the_same_door():
    run = BASE.replace(
        {
            "tokens": 768 * 60,
            "model.factory": "foreign_model:factory",
            "data.source": "foreign_model:Counting",
            "parametrization": "sp",
            "schedule.warmup_tokens": 768,
            "optimizer.lr": 0.03,
        }
    )
    outcome = run_trial([run], trial="t")
    assert outcome.trials[0]["status"] == "finished"
    assert outcome.trials[0]["loss"] < 0.5 < outcome.steps[0]["loss"]


def elastic(folder, run, *observers):
    """Steps and evaluations of the run on one worker, under a commit log."""
    store = RunStore(Location.parse(folder) / "runs" / run.name, run.name)
    run_worker(run, store, Unsupervised(store.open_attempt("recipe")), device="cpu", observers=observers)
    study = Study(folder)
    return study.steps().sort("step").collect(), study.evals().collect()


@pytest.mark.slow
@pytest.mark.parametrize("reduction", ["fast", "exact"])
def test_a_proxy_and_an_elastic_run_of_one_worker_have_the_same_bits(tmp_path, reduction):
    run = BASE.replace({"reduction": reduction, "norms_every": 3, "noise_every": 2}, name="same")
    outcome = run_trial([run], trial="t")
    steps, evals = elastic(tmp_path, run)
    for column in ("loss", "grad_norm", "lr"):
        assert steps[column].to_list() == [row[column] for row in outcome.steps]
    assert evals["loss"].to_list() == [outcome.trials[0]["loss"]]


def on_shards(folder):
    """A run on a folder of one shard."""
    shard(folder / "a.bin", 20_000)
    shard(folder.parent / "held.bin", 4_000)
    options = {"validation": str(folder.parent / "held.bin")}
    source = {"source": "froude.train.data.shards:Shards", "path": str(folder), "options": options}
    return BASE.replace(name="large", data=source)


def shard(path, tokens):
    path.parent.mkdir(exist_ok=True)
    np.random.default_rng(tokens).integers(0, 256, tokens).astype("<u2").tofile(path)


class Held(Unsupervised):
    """A group that is asked to hold after two steps, and released."""

    def poll(self, step):
        return "stop" if step == 2 else "none"


def test_a_corpus_that_grows_while_its_run_is_held_is_refused(tmp_path):
    """An attempt's workers open it anew when they are released, after the attempt said what it is made of."""
    run = on_shards(tmp_path / "corpus")
    store = RunStore(Location.parse(tmp_path) / "runs/large", "large")
    held = Held(store.open_attempt("recipe", {"material": material_of(run).to_dict()}))
    run_worker(run, store, held, device="cpu")
    shard(tmp_path / "corpus" / "b.bin", 10_000)
    with pytest.raises(ConfigError, match=r"must be what the run began with, but the training split is \w+…"):
        run_worker(run, store, held, device="cpu")
    (tmp_path / "corpus" / "b.bin").unlink()
    assert math.isfinite(run_worker(run, store, held, device="cpu"))


def test_a_corpus_that_grew_is_refused_when_the_run_goes_back_to_its_start(tmp_path):
    run = on_shards(tmp_path / "corpus")
    loop = Loop(run, Trainer(run), InMemory(), ledger=False)
    shard(tmp_path / "corpus" / "b.bin", 10_000)
    with pytest.raises(ConfigError, match="must be what the run began with, but the training split"):
        loop.reload(0)


class Tracker(Observer):
    """What a tracker is: it hears of every row."""

    def __init__(self):
        self.rows, self.losses = [], []

    def wants_slot_norms(self, step):
        return True

    def wrote(self, row):
        self.rows.append(row)

    def evaluated(self, row):
        self.losses.append(row["loss"])


@pytest.mark.parametrize("names", [["stability"], ["loss_scale"], ["average"], ["mine", "", "mine"]])
def test_no_observer_keeps_its_state_under_anothers_name(names):
    """In a checkpoint one would replace the other; observers without a state have no name."""
    watching = [type("Named", (Observer,), {"name": name})() for name in names]
    with pytest.raises(ConfigError, match=f"but two states would be '{names[0]}'; rename the observer"):
        Loop(BASE, Trainer(BASE), InMemory(), watching, ledger=False)
    Loop(BASE, Trainer(BASE), InMemory(), [*watching[1:], Observer(), Observer()], ledger=False)


@pytest.mark.slow
def test_a_tracker_hears_of_every_step_and_changes_no_bit(tmp_path):
    run = BASE.replace({"reduction": "exact", "eval_every": 5}, name="tracked")
    tracker = Tracker()
    steps, evals = elastic(tmp_path / "tracked", run, tracker)
    assert [row["loss"] for row in tracker.rows] == steps["loss"].to_list()
    assert tracker.losses == evals.sort("step")["loss"].to_list()
    alone, _ = elastic(tmp_path / "alone", run)
    assert alone["loss"].to_list() == steps["loss"].to_list()


def test_nothing_saves_a_proxy_from_too_high_a_rate(tmp_path):
    """As an elastic run it would leave out updates, and end well: its loss would tell nothing of the rate."""
    run = BASE.replace(
        {"optimizer.lr": 1e30, "schedule.warmup_tokens": 0, "stability": "ladder"}, name="high"
    )
    outcome = run_trial([run], trial="t")
    assert outcome.trials[0]["status"] == "diverged"
    assert outcome.trials[0]["fingerprint"] == run.as_proxy().fingerprint != run.fingerprint
    assert not math.isfinite(outcome.steps[-1]["loss"])


@pytest.mark.parametrize(
    ("horizons", "steps"), [((10, 20), 16 + 2 + 4), ((432, 972), 778 + 86 + 194), ((7,), 7)]
)
def test_a_trial_knows_its_steps_before_it_is_trained(horizons, steps):
    """Also where the tail begins within a batch: that of 432 steps at 346, of 972 at 778."""
    assert Trial("t", tuple(BASE.replace(tokens=768 * n, name=f"n{n}") for n in horizons)).steps == steps
