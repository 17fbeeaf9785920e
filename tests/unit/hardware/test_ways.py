"""Which way is cheapest, what would help where none fits, how long a step takes, and how all that is told."""

import ast
import json
import math
import operator
import re
from dataclasses import replace

import pytest

from froude.cli import main
from froude.config import ConfigError, Run
from froude.hardware import tables
from froude.hardware.lines import explained, told
from froude.hardware.roofline import step
from froude.hardware.sizes import Place
from froude.hardware.ways import plan
from froude.sweep.sizes import sizes_of

SEVEN = Run(
    name="seven",
    model={
        "width": 4096,
        "depth": 32,
        "head_dim": 128,
        "mlp_ratio": 2.6875,
        "context": 4096,
        "vocab": 32_000,
    },
    batch=1024 * 4096,
    tokens=1024 * 4096 * 1000,
    precision="bf16",
    parametrization="sp",
)
TINY = Run(name="tiny", tokens=768 * 10, batch=768)


@pytest.fixture(scope="module")
def sizes():
    return sizes_of(SEVEN)


def planned(run, sizes, nodes="4x8", device="h100-80gb"):
    return plan(run, sizes, Place.parse(nodes), tables.device(device), tables.price(device))


def test_every_strategy_and_checkpointing_is_a_row_and_the_quickest_that_fits_is_chosen(sizes):
    found = planned(SEVEN, sizes)
    assert len(found.ways) == 5 * 4
    fitting = [way for way in found.ways if way.fits]
    assert found.chosen in fitting
    assert found.cost(found.chosen) == min(found.cost(way) for way in fitting)
    assert all(way.memory.needed <= 80e9 for way in fitting)
    flops = sizes.flops_per_token * SEVEN.tokens
    assert told(found)[0].endswith(f", bf16, adamw, {flops:.3g} FLOPs")
    ddp = [way for way in found.ways if way.run.compute.strategy == "ddp"]
    assert not any(way.fits for way in ddp)  # 16 bytes x 6.7e9
    assert found.chosen.step.tokens == SEVEN.batch


def test_an_exact_run_has_one_strategy_and_one_node_no_replicas(sizes):
    exact = planned(SEVEN.replace(reduction="exact", slots=32), sizes)
    assert {way.run.compute.strategy for way in exact.ways} == {"fsdp"}
    alone = planned(SEVEN, sizes, "1x8")
    assert {way.run.compute.strategy for way in alone.ways} == {"ddp", "zero1", "zero2", "fsdp"}


def test_what_fits_nowhere_says_what_would(sizes):
    found = planned(SEVEN, sizes, "1x1", "rtx-4090")
    assert found.chosen is None
    assert any(remedy.startswith("--nodes ") for remedy in found.remedies)
    assert any("--device h200" in remedy for remedy in found.remedies)
    assert "fits nowhere here; would fit: " in told(found)[-1]


GPT3 = SEVEN.replace(
    {"model.width": 12_288, "model.depth": 96, "model.mlp_ratio": 8 / 3, "model.context": 2048, "model.vocab": 50_257}
    | {"batch": 1536 * 2048, "tokens": 1536 * 2048 * 10}
)  # fmt: skip


def test_where_neither_more_nor_larger_devices_help_both_together_may():
    """Of 175B a workstation's cards can't hold a block's tensors, nor one larger card its share."""
    found = planned(GPT3, sizes_of(GPT3), "1x8", "rtx-4090")
    (remedy,) = found.remedies
    _, device, _, nodes = remedy.split()
    assert planned(GPT3, found.sizes, nodes, device).chosen
    assert not planned(GPT3, found.sizes, "192x8", "rtx-4090").chosen
    assert not planned(GPT3, found.sizes, "1x8", "b200").chosen
    assert told(found)[-1] == f"fits nowhere here; would fit: {remedy}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batch": 4 * 2048, "tokens": 4 * 2048}, "it has 4 windows; enlarge `batch`"),
        ({"model.width": 65_536, "model.head_dim": 128}, "no strategy splits; make the model narrower"),
        (
            {"model.context": 2**18, "batch": 2**18, "tokens": 2**18},
            "one window leaves for backward; shorten",
        ),
    ],
)
def test_what_fits_nowhere_at_all_says_why(changes, words):
    run = GPT3.replace(changes)
    found = planned(run, sizes_of(run), "1x1", "rtx-4090")
    assert not found.remedies
    assert told(found)[-1].startswith("fits nowhere here, nor on mi300x, the largest device, ")
    assert words in told(found)[-1]


def test_a_batch_must_have_a_window_for_each_worker(sizes):
    small = SEVEN.replace(batch=16 * 4096, tokens=16 * 4096)
    with pytest.raises(ConfigError, match="65,536 tokens are 16 windows for 32 workers; enlarge `batch`"):
        planned(small, sizes)


def test_a_step_is_the_models_flops_over_what_the_device_sustains(sizes):
    device = tables.device("h100-80gb")
    alone = step(SEVEN, sizes, Place(1, 1), device)
    assert alone.sending == 0
    assert alone.products == pytest.approx(
        sizes.flops_per_token * SEVEN.batch / (989.4e12 * device.sustained)
    )
    again = step(SEVEN.replace({"compute.checkpointing": "blocks"}), sizes, Place(1, 1), device)
    assert again.products == pytest.approx(alone.products * 4 / 3, rel=0.02)
    assert again.mfu < alone.mfu < device.sustained
    apart, together = (step(SEVEN, sizes, Place.parse(nodes), device) for nodes in ("32x1", "4x8"))
    assert apart.sending > 7 * together.sending
    hsdp = SEVEN.replace({"compute.strategy": "hsdp"})
    assert step(hsdp, sizes, Place(4, 8), device).sending < apart.sending


def test_the_arithmetic_is_printed_number_by_number(sizes):
    found = planned(SEVEN, sizes)
    text = "\n".join(explained(found))
    assert "4 bytes x 6,738,415,616 parameters / 32 workers that share" in text
    assert "44,032 = 2 x 22,016; gate and up" in text
    assert "x 0.8)" in text  # what collectives reach of a link
    days = SEVEN.tokens / found.chosen.step.tokens_per_second / 86_400
    assert f"{days:.5g} = 4,194,304,000 tokens / " in text
    assert found.to_dict()["chosen"]["days"] == pytest.approx(days)


NUMBER = r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?"
SIGNS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def by_hand(text):
    """What the numbers of a line give; words don't count, nor what is behind a semicolon."""

    def value(node):
        if isinstance(node, ast.BinOp):
            return SIGNS[type(node.op)](value(node.left), value(node.right))
        return max(map(value, node.args)) if isinstance(node, ast.Call) else node.value

    tokens = re.findall(rf"\bmax\b|{NUMBER}|[-+/()]|(?<= )x(?= )|, ", text.partition(";")[0])
    plain = "".join(
        "*" if token == "x" else token if token == ", " else token.replace(",", "") for token in tokens
    )
    return value(ast.parse(plain, mode="eval").body)


FORMS = {
    "7B": (SEVEN, "4x8", "h100-80gb"),
    "175B": (GPT3, "16x8", "rtx-4090"),
    "alone": (SEVEN.replace({"compute.loss_chunk": 2048, "compute.offload": True}), "1x1", "h200"),
    "muon": (SEVEN.replace({"optimizer.name": "muon", "model.tied": True, "model.z_loss": 1e-4}), "2x8", "b200"),
    "stochastic": (SEVEN.replace({"precision": "bf16_stochastic", "compute.loss_chunk": 512}), "1x4", "l40s"),
    "fp8": (SEVEN.replace(precision="fp8"), "2x4", "h100-80gb"),
    "exact": (SEVEN.replace(reduction="exact", slots=64), "2x8", "h100-80gb"),
    "small and exact": (TINY.replace(reduction="exact", slots=12), "1x1", "cpu"),
    "small": (TINY, "2x2", "cpu"),
    "in pieces": (TINY.replace({"compute.kernels": "fast", "compute.loss_chunk": 100}), "1x1", "cpu"),
    "windows": (TINY.replace({"model.sliding_window": 16, "model.global_every": 2}), "1x1", "cpu"),
}  # fmt: skip


@pytest.mark.parametrize("form", [*FORMS, "not the package's"])
def test_every_printed_line_adds_up_by_hand(form):
    run, nodes, device = FORMS.get(form, FORMS["7B"])
    sizes = sizes_of(run)
    found = planned(run, replace(sizes, estimated=form not in FORMS), nodes, device)
    for way in found.ways:
        heading, *lines = explained(found, way)[1:]
        sums = [line for line in lines if " = " in line]
        assert len(sums) >= 25
        for line in sums:
            left, right = line.split(" = ", 1)
            printed = re.findall(NUMBER, left)[-1]
            total, got = float(printed.replace(",", "")), by_hand(right)
            if left.endswith(" GB") and "." in re.findall(NUMBER, right)[0]:  # a sum of GB
                assert got == pytest.approx(total, abs=1e-9), (heading, line)
            elif left.endswith(" GB"):
                half = 0.6 * 10 ** (9 - len(printed.partition(".")[2]))
                assert got == pytest.approx(total * 1e9, abs=half), (heading, line)
            else:
                assert got == pytest.approx(total, rel=2e-4), (heading, line)


def plans(capsys, *argv):
    code = main(["plan", *argv])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_command_plans_a_run_of_a_file(tmp_path, capsys):
    file = tmp_path / "run.toml"
    file.write_text(TINY.to_toml())
    code, out, _ = plans(capsys, str(file), "--device", "cpu", "--explain")
    assert code == 0
    assert "cheapest that fits: fsdp, checkpointing none" in out
    assert "what is there at once:" in out
    code, out, _ = plans(capsys, str(file), "--device", "h100-80gb", "--nodes", "1x2", "--json")
    content = json.loads(out)
    assert (content["workers"], content["device"]) == (2, "h100-80gb")
    assert math.isfinite(content["chosen"]["dollars"])
    slots, workers = content["notes"]
    assert (slots, workers) == (
        "set `slots` to a multiple of 2: the run has 1",
        "set `workers` to 2: the run has 1",
    )


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_the_command_exits_with_1_where_nothing_fits(tmp_path, capsys, form):
    file = tmp_path / "run.toml"
    file.write_text(SEVEN.to_toml())
    assert plans(capsys, str(file), "--device", "rtx-4090", *form)[0] == 1
    assert plans(capsys, str(file), "--device", "rtx-4090", "--nodes", "8x1", *form)[0] == 0


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("run.toml", "--device", "h100"), "did you mean 'h100-80gb', 'h100-pcie' or 'h100-nvl'?"),
        (("run.toml", "--device", "cpu", "--nodes", "four"), "--nodes must be nodes x devices"),
        (
            ("run.toml", "--device", "cpu", "--plot", "s.svg"),
            "--plot draws the target run of a search space, but got --device",
        ),
        (("run.toml", "--device", "cpu", "--budget", "5"), "--budget plans the next runs of a study"),
        (("--next", "study", "--device", "cpu"), "--device plans for a device, but got --next"),
        (("run.toml", "--explain"), "--explain plans for a device; give --device, too"),
        (("mine.py:made",), "name one, or the device that this run is planned for, e.g. --device h100-80gb"),
        (
            ("run.toml",),
            "without --device a plan is for a search space, a Python file that defines space(), but got",
        ),
        (("mine.py:none", "--device", "cpu"), "must define none(), but"),
        (("mine.py:", "--device", "cpu"), "must be FILE.py:FUNCTION, but got mine.py:; name the function"),
        (
            ("mine.py:made", "--device", "cpu"),
            "must return a froude.config.Run, but that of mine.py returned int",
        ),
        (("gone.py:made", "--device", "cpu"), "there is none at gone.py"),
        (("run.toml", "--device", "cpu", "--nodes", "64x1"), "12 windows for 64 workers"),
    ],
)
def test_what_cannot_be_planned_is_refused_in_words(tmp_path, monkeypatch, capsys, argv, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text(TINY.to_toml())
    (tmp_path / "mine.py").write_text("def made():\n    return 1\n")
    code, _, err = plans(capsys, *argv)
    assert code == 2
    assert words in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("compute", "where", "words"),
    [
        ({"compile": "graphs"}, ("h100-80gb", "--nodes", "2x8"), "one worker with a GPU, but got 16 workers"),
        ({"compile": "graphs"}, ("cpu",), "one worker with a GPU, but got a cpu"),
        ({"kernels": "fast"}, ("h100-80gb",), 'is for CPUs, but h100-80gb is a GPU; set it to "plain"'),
    ],
)
def test_what_training_would_refuse_there_is_no_plan(tmp_path, capsys, compute, where, words):
    file = tmp_path / "run.toml"
    file.write_text(TINY.replace(compute=compute, batch=32 * 64, tokens=32 * 64, slots=1).to_toml())
    code, _, err = plans(capsys, str(file), "--device", *where)
    assert code == 2
    assert words in err


def test_an_optimizer_of_whole_models_is_for_one_worker():
    run = TINY.replace({"optimizer.name": "sophia_h"}, parametrization="sp")
    with pytest.raises(ConfigError, match="`workers` must be 1 with sophia_h"):
        planned(run, sizes_of(run), "1x2")


def test_no_remedy_is_one_that_training_refuses():
    graphs = SEVEN.replace({"compute.compile": "graphs"})
    found = planned(graphs, sizes_of(graphs), "1x1", "rtx-4090")
    assert found.remedies
    assert not any("--nodes" in remedy for remedy in found.remedies)


def test_offload_says_what_it_takes_of_the_host():
    """Beside its share of the state, from which a checkpoint is written, a copy of it and of the weights."""
    tied = GPT3.replace({"model.tied": True})
    sizes = sizes_of(tied)
    remedy = planned(tied, sizes).remedies[0]
    each = (4 * sizes.parameters + 2 * sizes.state_bytes) / 32 / 1e9
    assert remedy == (
        f"compute.offload = true, with {each:,.0f} GB of the host's memory a worker, {8 * each:,.0f} GB a node"
    )
    chosen = planned(tied.replace({"compute.offload": True}), sizes)
    assert f"offload takes {each:,.0f} GB of the host's memory a worker" in "\n".join(told(chosen))


def test_small_runs_are_told_in_their_own_units():
    head, _, columns, row, *_, choice, _ = told(planned(TINY, sizes_of(TINY), "1x1"))
    assert head.startswith("tiny: 139.6k parameters, 7.68k tokens, ")
    assert len(columns) == len(row)
    assert re.search(r" fits +[\d,]+ +\d+% +[\d.e-]+ +<0\.01$", row)
    assert ", <$0.01 at $2.69" in choice


def test_one_node_is_called_one(tmp_path, capsys):
    file = tmp_path / "run.toml"
    file.write_text(TINY.to_toml())
    line = "--nodes 2 is one node, whose 2 devices are linked with one another"
    assert line in plans(capsys, str(file), "--device", "h100-80gb", "--nodes", "2")[1]
    out = plans(capsys, str(file), "--device", "h100-80gb", "--nodes", "2", "--json")[1]
    assert line in json.loads(out)["notes"][-1]
    assert "is one node" not in plans(capsys, str(file), "--device", "h100-80gb", "--nodes", "1x2")[1]


def test_remedies_are_those_that_the_run_can_have():
    """Neither chunks for estimates of the curvature, nor offload for stood-in weights."""
    for changes in ({"optimizer.name": "sophia_g"}, {"precision": "bf16_stochastic"}):
        run = SEVEN.replace(changes)
        found = planned(run, sizes_of(run), "1x4", "rtx-4090")
        assert not found.chosen
        assert found.remedies
        left_out = "loss_chunk" if "optimizer.name" in changes else "offload"
        assert not any(left_out in remedy for remedy in found.remedies)


def test_fp8_is_planned_without_checkpointing_and_on_devices_that_have_it():
    run = SEVEN.replace(precision="fp8")
    sizes = sizes_of(run)
    assert {way.run.compute.checkpointing for way in planned(run, sizes).ways} == {"none"}
    (device,) = [words for words in planned(run, sizes, device="rtx-4090").remedies if "--device" in words]
    assert planned(run, sizes, device=device.split()[1]).chosen
