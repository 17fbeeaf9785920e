"""A Run: validated, frozen, the same from Python and from TOML, named and fingerprinted."""

import json
import re

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from froude.config import ConfigError, Run, whole_steps
from froude.section import SYNONYMS, UNITS

GOOD = {"tokens": 7680, "batch": 768, "slots": 12}

BAD = [
    ({"tokns": 7680}, "unknown key `tokns`; did you mean `tokens`?"),
    ({"optimizer": {"beta_2": 0.9}}, "unknown key `optimizer.beta_2`; did you mean `optimizer.beta2`?"),
    ({"model": {"wdith": 32}}, "unknown key `model.wdith`; did you mean `model.width`?"),
    ({"optimizer": {"beta2": 1.0}}, "`optimizer.beta2` must be less than 1, but got 1.0"),
    ({"optimizer": {"beta2": 1.5}}, "`optimizer.beta2` must be less than 1, but got 1.5"),
    ({"optimizer": {"lr": 0.0}}, "`optimizer.lr` must be greater than 0"),
    (
        {"workers": 2, "reduction": "exact", "compute": {"strategy": "ddp"}},
        '`compute.strategy` must be "fsdp" in an exact run of several workers',
    ),
    (
        {"workers": 3, "compute": {"strategy": "hsdp", "replicas": 2}},
        "`compute.replicas` must divide the number of workers at all times, but got 2 with 3 workers; use 0",
    ),
    ({"workers": [2, 4], "compute": {"strategy": "hsdp", "replicas": 2}}, "but got 2 with 2 to 4 workers"),
    ({"compute": {"strategy": "fsdp", "replicas": 2}}, '`compute.replicas` is for `compute.strategy` "hsdp"'),
    ({"compute": {"strategy": "zero4"}}, "`compute.strategy` must be"),
    ({"batch": 800}, "`batch` must be a multiple of slots x context = 12 x 64 = 768 tokens, but got 800"),
    ({"batch": 100, "slots": 1}, "use 64 or 128"),
    ({"tokens": 7681}, "`tokens` must be a multiple of `batch` = 768 tokens, but got 7681; use 7680 or 8448"),
    ({"schedule": {"warmup_tokens": 7681}}, "shorten the warmup or lengthen the run"),
    ({"schedule": {"name": "cosin"}}, "`schedule.name` must be 'constant', 'linear'"),
    ({"workers": 0}, "`workers` must be at least 1"),
    ({"workers": [0, 3]}, "`workers` must be at least 1"),
    ({"workers": [3, 2]}, "1 <= min <= max"),
    ({"workers": 13}, "must not exceed the 12 slots"),
    ({"micro_batch": 100}, "`micro_batch` must be a multiple of the context"),
    ({"model": {"width": 50}}, "`model.width` must be a multiple of an even `model.head_dim`"),
    ({"model": {"factory": "nonsense"}}, "`model.factory`"),
    ({"data": {"sha256": "abc"}}, "`data.sha256`"),
    ({"name": "../../etc"}, "`name` must start with a letter or digit"),
    ({"tokens": "7680"}, "`tokens` must be a valid integer, but got '7680'"),
    ({"seed": -1}, "`seed` must be greater than or equal to 0"),
    (
        {"parametrization": "mu"},
        "`parametrization` must be 'sp', 'mup', 'depth_mup' or 'completep' (did you mean 'mup'?), but got 'mu'",
    ),
]


BAD += [
    ({table: {key: value}}, f"`{table}.{key}` must {rule}, but got {value!r}; {remedy}")
    for table, key, value, rule, remedy in (
        ("compute", "loss_chunk", -1, "be greater than or equal to 0", "use 0 or more"),
        ("compute", "threads", 1.5, "be a valid integer", "write a whole number"),
        ("compute", "threads", "2", "be a valid integer", "write 2"),
        ("compute", "threads", 2.0, "be a valid integer", "write 2"),
        ("compute", "offload", 1, "be a valid boolean", "write true or false"),
        ("compute", "compile", "block", "be 'none', 'blocks' or 'graphs'", "did you mean 'blocks'?"),
        ("model", "width", 0, "be greater than 0", "use 1 or more"),
        ("model", "mlp_ratio", 0.0, "be greater than 0", "use a number above 0"),
        ("model", "mlp_ratio", "1.5", "be a valid number", "write 1.5"),
        ("model", "factory", "mine", r"match pattern '^[\w.]+:\w+$'", "correct it"),
        ("schedule", "floor", 2.0, "be less than or equal to 1", "use 1 or less"),
        ("optimizer", "beta2", 1.0, "be less than 1", "use a number below 1"),
    )
] + [({"seed": 2**31}, "`seed` must be less than 2147483648, but got 2147483648; use 2147483647 or less")]  # fmt: skip


@pytest.mark.parametrize(("change", "message"), BAD)
def test_python_and_toml_give_the_same_short_error(change, message):
    content = {
        key: value for key, value in {**GOOD, **change}.items() if key != "tokens" or "tokns" not in change
    }
    with pytest.raises(ConfigError) as python:
        Run(**content)
    with pytest.raises(ConfigError) as toml:
        Run.from_toml(tomli_w.dumps(content))
    assert str(python.value).replace("(", "[").replace(")", "]") == str(toml.value).replace("(", "[").replace(
        ")", "]"
    )
    assert message in str(python.value)
    assert len(str(python.value)) < 300
    assert "\n" not in str(python.value)


def test_what_is_no_toml_is_a_short_error():
    with pytest.raises(ConfigError, match="valid TOML"):
        Run.from_toml("tokens = = 3")
    for text in ("tokens = " + "9" * 5000, "tokens = " + "[" * 5000):
        with pytest.raises(ConfigError, match="a run must be valid TOML, but"):
            Run.from_toml(text)


def test_a_missing_key_is_named():
    with pytest.raises(ConfigError, match="`tokens` is required and missing"):
        Run()


def test_a_run_is_frozen():
    with pytest.raises(ValueError, match="frozen"):
        Run(**GOOD).tokens = 1


@given(
    lr=st.floats(1e-6, 1.0),
    steps=st.integers(1, 10_000),
    slots=st.sampled_from([1, 2, 3, 4, 6, 12]),
    seed=st.integers(0, 2**31 - 1),
    parametrization=st.sampled_from(["sp", "mup"]),
    options=st.dictionaries(
        st.text("abc", min_size=1), st.one_of(st.integers(0, 9), st.booleans(), st.text("xyz"))
    ),
)
def test_toml_and_json_round_trips_keep_every_bit(lr, steps, slots, seed, parametrization, options):
    run = Run(
        tokens=768 * steps,
        batch=768,
        slots=slots,
        seed=seed,
        parametrization=parametrization,
        optimizer={"lr": lr},
        model={"options": options},
    )
    for copy in (Run.from_toml(run.to_toml()), Run.from_dict(json.loads(json.dumps(run.to_dict())))):
        assert copy == run
        assert copy.fingerprint == run.fingerprint


def test_the_fingerprint_leaves_labels_resources_and_paths_out():
    run = Run(**GOOD)
    same = {
        "name": "x",
        "stage": "y",
        "workers": 3,
        "device": "cpu",
        "checkpoint_every": 7,
        "data.path": "/a/b",
    }
    for key, value in same.items():
        assert run.replace({key: value}).fingerprint == run.fingerprint, key
    other = {
        "tokens": 15_360,
        "seed": 1,
        "slots": 6,
        "optimizer.lr": 0.1,
        "data.sha256": "0" * 64,
        "model.depth": 3,
    }
    prints = {run.replace({key: value}).fingerprint for key, value in other.items()}
    assert len(prints) == len(other)
    assert run.fingerprint not in prints


def test_names_are_readable():
    run = Run(tokens=16_384, batch=16_384, model={"width": 256, "depth": 4}, optimizer={"lr": 3e-3})
    assert run.name == "w256-d4-b16k-lr3e-3-s0"
    assert run.replace({"optimizer.lr": 2**-7.5}).name == "w256-d4-b16k-lr5.5e-3-s0"
    assert run.replace(name="mine").replace(seed=1).name == "mine"


def test_replace_validates_and_names_the_key():
    with pytest.raises(ConfigError, match=r"did you mean `optimizer\.lr`"):
        Run(**GOOD).replace({"optimizer.lrr": 1.0})


def test_another_optimizer_takes_its_own_defaults_and_keeps_what_was_chosen():
    run = Run(**{**GOOD, "optimizer": {"name": "adamw", "weight_decay": 0.3}})
    for name in ("lion", "muon", "soap"):
        other, fresh = (
            run.replace({"optimizer.name": name}).optimizer,
            Run(**GOOD, optimizer={"name": name}).optimizer,
        )
        assert other.weight_decay == 0.3
        assert other == fresh.model_copy(update={"weight_decay": 0.3})
        assert run.replace({"optimizer.name": name, "optimizer.lr": 1e-4}).optimizer.lr == 1e-4
    assert (
        run.replace({"optimizer.name": "lion"}).replace({"optimizer.name": "adamw"}).optimizer
        == run.optimizer
    )


def test_a_name_in_capitals_is_near_its_own():
    with pytest.raises(ConfigError, match="did you mean 'adamw'"):
        Run(**GOOD, optimizer={"name": "AdamW"})


MEANT = [
    ({"optimizer": {"learning_rate": 1e-3}}, "did you mean `optimizer.lr`?"),
    ({"learning_rate": 1e-3}, "did you mean `optimizer.lr`?"),
    ({"lr": 1e-3}, "did you mean `optimizer.lr`?"),
    ({"optimizer": {"wd": 0.1}}, "did you mean `optimizer.weight_decay`?"),
    ({"schedule": {"warmup_steps": 10}}, "did you mean `schedule.warmup_tokens` (steps x batch)?"),
    ({"model": {"n_layer": 4}}, "did you mean `model.depth`?"),
    ({"model": {"hidden_size": 64}}, "did you mean `model.width`?"),
    ({"model": {"block_size": 64}}, "did you mean `model.context`?"),
    ({"batch_size": 12}, "did you mean `batch` (in tokens: windows x context)?"),
    ({"max_steps": 10}, "did you mean `tokens` (of the whole run: steps x batch)?"),
    ({"optimizer": {"beta_2": 0.9}}, "did you mean `optimizer.beta2`?"),
]


@pytest.mark.parametrize(("change", "message"), MEANT)
def test_another_tools_word_leads_to_the_key_that_means_it(change, message):
    with pytest.raises(ConfigError) as error:
        Run(**GOOD, **change)
    assert message in str(error.value)


def test_the_keys_that_words_lead_to_are_there():
    content = Run(**GOOD).model_dump()
    for key in {*SYNONYMS.values(), *UNITS}:
        table, _, last = key.rpartition(".")
        assert last in (content[table] if table else content), key


def test_slots_that_were_not_named_follow_the_workers():
    alone = Run(tokens=7680, batch=768)
    elastic = alone.replace({"optimizer.lr": 0.01}).replace(workers=(1, 3))
    assert (alone.slots, elastic.slots) == (1, 6)
    assert alone.replace(slots=0, workers=2).slots == 2
    same = Run(tokens=7680, batch=768, slots=1)
    assert (same, same.fingerprint) == (alone, alone.fingerprint)
    for fixed in (same, Run.from_toml(alone.to_toml())):  # a stored run keeps its slots
        with pytest.raises(ConfigError, match="must not exceed the 1 slots"):
            fixed.replace(workers=(1, 3))


@given(st.floats(1, 1e9), st.integers(1, 10**6))
def test_whole_steps_is_the_nearest_positive_multiple(tokens, batch):
    whole = whole_steps(tokens, batch)
    assert whole % batch == 0
    assert whole >= batch
    assert abs(whole - tokens) <= max(batch / 2, batch - tokens) * (1 + 1e-9)


def test_a_corpus_is_named_by_its_place_and_its_content(tmp_path, monkeypatch):
    """Two files are two runs, the same bytes elsewhere are the same run, and workers elsewhere find the file."""
    monkeypatch.chdir(tmp_path)
    for name, text in (("a.txt", "one"), ("b.txt", "two"), ("c.txt", "one")):
        (tmp_path / name).write_text(text)
    a, b, c = (
        Run(**GOOD, data={"source": "froude.train.data.text:TextFile", "path": f"{n}.txt"}) for n in "abc"
    )
    assert a.data.path == str(tmp_path / "a.txt")
    assert len({a.fingerprint, b.fingerprint}) == 2
    assert a.fingerprint == c.fingerprint
    assert Run.from_toml(a.to_toml()) == a
    missing = Run(**GOOD, data={"source": "froude.train.data.text:TextFile", "path": "none.txt"})
    assert missing.data.sha256 == ""


def test_replicas_are_no_matter_of_one_worker() -> None:
    run = Run(tokens=768 * 4, workers=2, compute={"strategy": "hsdp", "replicas": 2})
    assert run.replace(workers=1).compute.replicas == 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"precision": "fp8", "compute": {"checkpointing": "blocks"}},
            '`compute.checkpointing` must be "none"',
        ),
        (
            {
                "parametrization": "sp",
                "optimizer": {"name": "sophia_h"},
                "compute": {"checkpointing": "blocks"},
            },
            '`compute.checkpointing` must be "none" with sophia_h',
        ),
        (
            {"precision": "fp8", "model": {"context": 24}},
            '`model.context` must be a multiple of 16 with `precision` "fp8"',
        ),
        ({"device": "cuda", "compute": {"kernels": "fast"}}, '`compute.kernels` "fast" is for CPUs'),
    ],
)
def test_what_cannot_go_together_is_named(changes: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        Run(tokens=768, **changes)


def test_a_key_does_not_lead_into_a_number() -> None:
    with pytest.raises(
        ConfigError, match=r"`seed\.x` must lead into a table, but 'seed' is none; correct the key"
    ):
        Run(tokens=768).replace({"seed.x": 1})
