"""What a sent file must not have, and what each check says of a machine that does not do what it must."""

from __future__ import annotations

import getpass
import json
import socket
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from froude.doctor import finding, verdicts
from froude.doctor.finding import Examination, Finding, without_names

WORD = st.from_regex(r"[a-z][a-z0-9]{3,9}", fullmatch=True)
TELLING = st.one_of(
    st.lists(WORD, min_size=2, max_size=4).map(lambda parts: "/" + "/".join(parts)),
    st.lists(WORD, min_size=1, max_size=3).map(lambda parts: "~/" + "/".join(parts)),
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(str).filter(lambda text: text.count(":") >= 2),
    WORD.map(lambda word: f"s3://{word}/runs"),
    WORD.map(lambda word: f"http://{word}:9000"),
    WORD.map(lambda word: f"someone@{word}.org"),
)


@given(
    told=TELLING,
    before=st.sampled_from(["", "at ", "('", '"']),
    after=st.sampled_from(["", " failed", "')", '",']),
)
def test_nothing_is_sent_that_tells_where_a_machine_is(told: str, before: str, after: str) -> None:
    assert told not in json.dumps(without_names({"a": [f"OSError: {before}{told}{after}"], told: 1.0}))


def test_names_of_host_and_user_are_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "gpu-box-7.example.org")
    monkeypatch.setattr(getpass, "getuser", lambda: "amalia")
    finding._names.cache_clear()
    said = without_names("Amalia on gpu-box-7: gpu-box-7.example.org says no, amaliax does not")
    finding._names.cache_clear()
    assert said == "<user> on <host>: <host> says no, amaliax does not"


@pytest.mark.parametrize(
    "kept",
    ["2.13.0+cpu", "550.54.15", "NVIDIA H100 80GB HBM3", "12.8", "0.4 GB/s", "step 1/2", "12:30", "8 ok"],
)
def test_versions_and_figures_stay(kept: str) -> None:
    assert without_names(kept) == kept


def test_the_table_says_what_to_do_and_the_file_holds_no_infinity() -> None:
    found = Examination(
        False,
        [
            Finding("store", "fail", "it overwrites", "use another", {"x": float("inf")}),
            Finding("a", "ok", "fine"),
        ],
    )
    assert not found.passed
    assert found.lines()[0].startswith("fail  store")
    assert "it overwrites: use another" in found.lines()[0]
    assert found.lines()[-1] == "1 ok, 0 warn, 1 fail"
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["findings"][0]["figures"]["x"] is None


GPU = {"name": "A", "total_bytes": 80 * 2**30, "free_bytes": 79 * 2**30, "capability": "9.0", "bf16": True}
STEP: dict[str, Any] = {"seconds": 0.5, "tokens_per_second": 2e4, "mfu": 0.45, "peak_bytes": 2**30}


@pytest.mark.parametrize(
    ("found", "verdict", "words"),
    [
        (verdicts.devices([]), "fail", "sees no GPU"),
        (verdicts.devices([GPU, GPU]), "ok", "2 of A, 80 GiB"),
        (verdicts.devices([GPU, {**GPU, "name": "B"}]), "warn", "A, B"),
        (verdicts.devices([{**GPU, "free_bytes": 2**30}]), "warn", "99% taken"),
        (verdicts.devices([{**GPU, "bf16": False}]), "warn", "no bf16"),
        (verdicts.matmul({"fp32": 3e-7, "bf16": 3e-3, "tf32": 3e-4}), "ok", "bf16 3.0e-03"),
        (verdicts.matmul({"fp32": 3e-4, "bf16": 3e-3}), "fail", "too much for fp32"),
        (verdicts.matmul({"fp32": 3e-7, "bf16": 3e-2}), "warn", "too much for bf16"),
        (verdicts.repeats({"digest": "a"}, {"digest": "b"}), "fail", "other bits"),
        (verdicts.exactness({1: "a", 2: "a", 4: "a"}), "ok", "at 1, 2, 4 workers"),
        (verdicts.exactness({1: "a", 2: "b", 4: "a"}), "fail", "2 workers gave other bits than 1"),
        (verdicts.links({1: {"peers": [True]}, 2: {"all_reduce": 300.0}}), "ok", "300.0 GB/s at 2 ranks"),
        (verdicts.links({1: {"to_device": 50.0, "peers": [False]}}), "warn", "to device 50.0 GB/s"),
        (verdicts.step("124M", STEP, 2**31)[0], "ok", "MFU 45%"),
        (verdicts.step("124M", {**STEP, "mfu": 0.1}, 2**31)[0], "warn", "MFU 10%"),
        (verdicts.step("124M", {**STEP, "mfu": None}, 2**31)[0], "ok", "not known"),
        (verdicts.step("124M", STEP, 2**30 + 2**26)[1], "ok", "held 1.000 GiB at most, planned 1.062 (-6%)"),
        (verdicts.step("124M", STEP, 2**31)[1], "warn", "planned 2.000 (-50%), more than 10% off"),
        (verdicts.step("124M", STEP, 2**29)[1], "warn", "planned 0.500 (+100%), more than 10% off"),
    ],
)  # fmt: skip
def test_verdicts(found: Finding, verdict: str, words: str) -> None:
    assert (found.verdict, words in found.line) == (verdict, True), found
    assert bool(found.remedy) == (verdict != "ok")


def test_no_path_of_a_store_is_sent(tmp_path: Path) -> None:
    said = without_names(f"FileNotFoundError: [Errno 2] No such file: '{tmp_path}/runs'")
    assert str(tmp_path) not in said
