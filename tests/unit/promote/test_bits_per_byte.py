"""Laws of runs with several tokenizers: in bits per byte they are one ladder, in nats per token they are not."""

from __future__ import annotations

import json
import math
from pathlib import Path

import polars as pl
import pytest

from froude import laws, schemas
from froude.cli import main
from froude.config import ConfigError, Run
from froude.promote.imported_runs.history import make_study
from froude.promote.ladder.critical import critical
from froude.promote.ladder.measured_in import goals_in, measured_in
from froude.promote.ladder.shape import doubts
from froude.store import Location
from froude.study import Study
from froude.train.rows import describe

POINT = {"params": 2e8, "tokens": 4e9}


def bits(params: float, tokens: float) -> float:
    return 0.6 + 40 / params**0.3 + 100 / tokens**0.35


def table() -> pl.DataFrame:
    rows = [
        {"params": p, "tokens": t, "bits_per_byte": bits(p, t), "each": 2.0 + 2.0 * ((i + j) % 2)}
        for i, p in enumerate((1e6, 2e6, 4e6, 8e6, 1.6e7))
        for j, t in enumerate((5e7, 1e8, 2e8, 4e8))
    ]
    return pl.DataFrame(rows).with_columns(loss=pl.col("bits_per_byte") * math.log(2) * pl.col("each"))


@pytest.fixture
def study(tmp_path: Path) -> Location:
    """A history of runs with two tokenizers, of 2 and 4 bytes a token, that know their bits per byte."""
    table().drop("bits_per_byte", "each").write_csv(tmp_path / "runs.csv")
    place = make_study(str(tmp_path / "runs.csv"), tmp_path / "study").location
    (file,) = (place / "trials").walk()
    rows = pl.read_parquet(file.url)
    known = rows.select("params", "tokens").join(
        table().with_columns(pl.col("params", "tokens").cast(pl.Int64)),
        on=["params", "tokens"],
        maintain_order="left",
    )
    told = rows.with_columns(bits_per_byte=known["bits_per_byte"])
    file.replace(schemas.to_bytes(told.to_arrow().cast(schemas.TRIALS)))
    return place


def test_the_laws_take_the_column_by_themselves() -> None:
    law = laws.loss_law(table().with_columns(loss=pl.col("bits_per_byte")))
    assert law.predict(**POINT).loss == pytest.approx(bits(**POINT), rel=0.01)


@pytest.mark.slow
def test_fit_takes_it_too(study: Location, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["fit", str(study), "--predict", "params=2e8,tokens=4e9"]
    assert main([*command, "--loss", "bits_per_byte", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["loss_unit"] == "bits per byte"
    assert found["prediction"]["loss"] == pytest.approx(bits(**POINT), rel=0.02)
    assert main([*command, "--loss", "bits_per_byte"]) == 0
    assert (
        f"forecast        {found['prediction']['loss']:.4f} bits per byte, 90% in" in capsys.readouterr().out
    )
    assert main([*command, "--json"]) == 0
    nats = json.loads(capsys.readouterr().out)
    assert "loss_unit" not in nats
    width = [each["prediction"]["high"] - each["prediction"]["low"] for each in (nats, found)]
    assert width[0] > 3 * width[1]  # two tokenizers are two ladders


def test_runs_that_do_not_know_it_are_refused(
    study: Location, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_study(str(tmp_path / "runs.csv"), tmp_path / "old")
    assert main(["fit", str(tmp_path / "old"), "--loss", "bits_per_byte"]) == 2
    assert "a fit to bits_per_byte needs it of every finished run, but" in capsys.readouterr().err
    assert main(["fit", str(study), "--loss", "bits_per_bite"]) == 2
    assert "(did you mean 'bits_per_byte'?), but got 'bits_per_bite'" in capsys.readouterr().err
    rows = Study(study).trials().collect()
    few = rows.with_columns(bits_per_byte=pl.when(pl.col("params") > 1e6).then(pl.col("bits_per_byte")))
    with pytest.raises(ConfigError, match="but 4 of 20 have none: their source has no `bytes_per_token`"):
        measured_in("bits_per_byte", few)
    lost = few.with_columns(
        status=pl.when(pl.col("params") > 1e6).then(pl.col("status")).otherwise(pl.lit("diverged"))
    )
    assert measured_in("bits_per_byte", lost)["loss"].null_count() == 4


def test_a_target_with_another_tokenizer_is_not_on_the_ladder() -> None:
    def run(sha256: str, vocab: int = 300) -> Run:
        return Run(
            tokens=768,
            model={"vocab": vocab},
            data={"options": {"tokenizer": "t", "tokenizer_sha256": sha256}},
        )

    ladder = pl.DataFrame([{**describe(run("a")), "status": "finished", "params": 1, "loss": 1.0}])
    assert doubts(ladder, run("a")) == ()
    (same_size,) = doubts(ladder, run("b"))
    assert same_size.startswith('the target\'s data mixture is {"tokenizer_sha256": "b"}')
    assert any("vocabulary is 400, the proxies' 300" in each for each in doubts(ladder, run("b", 400)))


def test_the_goal_of_a_critical_batch_is_in_the_same_unit() -> None:
    each = math.log(2) * 4  # bytes a token
    nats = pl.DataFrame(
        [
            {
                "stage": "batch",
                "status": "finished",
                "batch": batch,
                "loss": 1.9 + 0.5 * math.log(needed / steps),
            }
            | {
                "steps": steps,
                "lr": 0.1,
                "batch_final": batch,
                "trial": f"b{batch}",
                "run": f"b{batch}-{steps}",
            }
            for batch, needed in ((64, 500), (128, 300), (256, 200), (512, 150))
            for steps in (100, 200, 400, 800)
        ]
    ).with_columns(tokens=pl.col("steps") * pl.col("batch"), bits_per_byte=pl.col("loss") / each)
    stages = {"batch": {"role": "critical_batch", "target_loss": 1.9}, "law": {"role": "loss_law"}}
    found = [
        critical(measured_in(unit, nats), goals_in(unit, stages, nats)) for unit in ("loss", "bits_per_byte")
    ]
    ours, theirs = (each.law for each in found if each is not None)
    assert (theirs.s_min, theirs.b_crit) == pytest.approx((ours.s_min, ours.b_crit))
    assert [each.goal for each in found if each is not None] == pytest.approx([1.9, 1.9 / each])
