"""froude fit."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from froude.cli.common import FAILED, Debug, Json, Trust, emit, say, verb

if TYPE_CHECKING:
    from froude.config import Run
    from froude.laws import Prediction
    from froude.promote.diagnosis.diagnose import Diagnosis
    from froude.promote.fits import Fits
    from froude.study import Study
    from froude.train.local_critical_batch import Branched


@verb
def fit(
    study: Annotated[
        str, typer.Argument(metavar="[STUDY]", help="Path or s3:// URL of a study.", show_default=False)
    ] = "",
    source: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="FILE",
            help="Make a study from the runs in a .csv, .tsv, .parquet, .jsonl or .json file, a folder of W&B's "
            "offline runs, or an MLflow store (mlflow.db).",
        ),
    ] = "",
    columns: Annotated[
        str,
        typer.Option(
            metavar="params=N,…",
            help="With --from: froude's names = the file's; params, tokens, loss are required; status= drops a column.",
        ),
    ] = "",
    out: Annotated[str, typer.Option(metavar="STUDY", help="With --from: where the study is written.")] = "",
    target: Annotated[
        str, typer.Option(metavar="FILE.toml", help="With --from: the target run that these runs are for.")
    ] = "",
    fresh: Annotated[
        bool, typer.Option("--fresh", help="With --from: replace a study that was made from a table before.")
    ] = False,
    predict: Annotated[
        str, typer.Option(metavar="params=N,tokens=D", help="Also forecast the loss of this run.")
    ] = "",
    loss: Annotated[
        str,
        typer.Option(
            metavar="COLUMN",
            help="What the laws are fitted to: loss, in nats per token, or bits_per_byte, in which tokenizers compare.",
        ),
    ] = "loss",
    diagnose: Annotated[
        bool,
        typer.Option("--diagnose", help="Say why learning rates do not transfer; this trains a few steps."),
    ] = False,
    branches: Annotated[
        bool,
        typer.Option(
            "--branches", help="Measure the target run's critical batch on branches of its checkpoint."
        ),
    ] = False,
    trust: Trust = False,
    as_json: Json = False,
    debug: Debug = False,
) -> int | None:
    """Fit the laws to a study: learning-rate transfer, critical batch, loss. The runs may be other people's.

    Example: froude fit runs/quickstart

    Example: froude fit --from runs.csv --columns params=N,tokens=D --out runs/mine --predict params=7e9,tokens=1.4e11
    """
    from froude.cli.options import point
    from froude.config import ConfigError
    from froude.promote.fits import fit as fit_study
    from froude.promote.imported_runs.history import holds_table
    from froude.promote.imported_runs.reading import reading
    from froude.promote.ladder import measured_in
    from froude.promote.ladder.unfinished import none_finished
    from froude.promote.ladder.validation_sets import SetForecast
    from froude.study import Study
    from froude.sweep.spent import proxy_flops

    wanted = point("--predict", predict) if predict else None
    imported = _imported(study, source, columns, out, target, fresh=fresh)
    found = imported or Study(study)
    table = reading(imported) if imported is not None else None
    if table is not None and not as_json:
        print("\n".join(table.lines()), flush=True)
    counts = dict(found.trials().group_by("status").len().collect().iter_rows())
    if nothing := none_finished(counts, str(found.location), table=holds_table(found.meta)):
        return say(nothing, FAILED)
    fits = fit_study(found, measured_in.check(loss))
    unit = measured_in.UNITS[loss]
    try:
        prediction = fits.predict(**wanted) if wanted is not None else None
        sets = fits.predict_sets(**wanted) if wanted is not None else {}
    except ConfigError as error:
        made = f" The study itself was made: `froude fit {out}`." if source else ""
        raise ConfigError(f"{error}{made}") from None
    diagnoses = _diagnoses(found, fits, trust=trust, quiet=as_json) if diagnose else []
    branched = _branched(found, fits.target, trust=trust, quiet=as_json) if branches else None
    if as_json:
        content = fits.summary() | {"fingerprints": dict(fits.fingerprints)}
        content |= {"loss_unit": unit} if loss != "loss" else {}
        content |= {"table": table.to_dict()} if table is not None else {}
        content |= {"prediction": asdict(prediction)} if prediction is not None else {}
        content |= {"sets_prediction": {name: asdict(each) for name, each in sets.items()}} if sets else {}
        content |= {"diagnosis": [each.to_dict() for each in diagnoses]} if diagnose else {}
        emit(content | ({"branches": branched.to_dict()} if branched else {}))
        return None
    print("\n".join(fits.lines()))
    if prediction is not None and wanted is not None:
        cost = proxy_flops(found) / 6 / wanted["params"] / wanted["tokens"]
        naive = fits.largest["loss"] if fits.largest is not None else math.nan
        print("\n".join(_said(prediction, cost, naive, unit)))
    for name, own in sets.items():
        print(f"{f'on set {name}':<15} {SetForecast.of(own).words(f' {unit}, {100 * own.level:.0f}%')}")
    for each in diagnoses:
        print("\n".join(["", *each.lines()]))
    if branched:
        print("\n".join(["", *branched.lines()]))
    return None


def _said(prediction: Prediction, cost: float, naive: float, unit: str) -> list[str]:
    ratios = ", ".join(f"{name} {ratio:.3g}×" for name, ratio in prediction.extrapolation.items())
    trust = "certified" if prediction.certified else f"not certified: {'; '.join(prediction.reasons)}"
    from froude.promote.forecast import OTHERS

    known = {"naive": naive, **{key: getattr(prediction, key) for key in OTHERS if key != "naive"}}
    others = {words: known[key] for key, words in OTHERS.items()}
    told = ", ".join(f"{words} {loss:.4f}" for words, loss in others.items() if math.isfinite(loss))
    return [
        f"forecast        {prediction.loss:.4f} {unit}, {100 * prediction.level:.0f}% in "
        f"[{prediction.low:.4f}, {prediction.high:.4f}], {trust}",
        f"extrapolation   {ratios} the largest fitted",
        f"cost of runs    {cost:.3g}× the 6·params·tokens FLOPs of the run forecast, all together",
        *([f"in comparison   {told}"] if told else []),
        f"noise of a run  {100 * prediction.noise:.2g}% by the law: the floor under a forecast's error",
    ]


def _imported(study: str, source: str, columns: str, out: str, target: str, *, fresh: bool) -> Study | None:
    """The study made of a table, if one is named; ConfigError for options that do not go together."""
    from froude.cli.options import pairs
    from froude.config import ConfigError, Run
    from froude.promote.imported_runs.history import make_study

    if bool(study) == bool(source) or bool(source) != bool(out):
        raise ConfigError(
            "a fit needs either a study or a table of runs; give STUDY, or --from FILE and --out STUDY"
        )
    if not source:
        if columns or target or fresh:
            raise ConfigError(
                "--columns, --target and --fresh are for a table of runs; give --from FILE, too"
            )
        return None
    large = None
    if target:
        try:
            large = Run.from_toml(Path(target).read_text())
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "not UTF-8"
            raise ConfigError(f"--target must be a readable TOML file, but {target}: {why}") from None
    return make_study(source, out, columns=pairs("--columns", columns, empty=True), target=large, fresh=fresh)


def _diagnoses(study: Study, fits: Fits, *, trust: bool, quiet: bool) -> list[Diagnosis]:
    """A diagnosis for each parametrization of which the study has a transfer curve, from the runs of its trials."""
    import torch

    from froude.config import ConfigError
    from froude.launch.display import Display
    from froude.promote.diagnosis.diagnose import diagnose
    from froude.promote.imported_runs.history import holds_table
    from froude.sweep.trial_store import read_all
    from froude.train.api import check_trust

    if holds_table(study.meta):
        raise ConfigError(
            "a diagnosis trains a study's own proxies, but these were trained elsewhere; drop --diagnose"
        )
    if not fits.transfer:
        raise ConfigError("a diagnosis needs a stage of role lr_transfer at two widths or more; sweep one")
    torch.set_num_threads(1)  # models are small: threads would only wait for each other
    runs = {run.name: run for stored in read_all(study.location).values() for run in stored.trial.runs}
    display, found = Display(quiet=quiet), []
    for name in fits.transfer:
        rows = fits.rows[f"lr_transfer_{name}"]
        chosen = [runs[run].replace(parametrization=name) for run in rows["run"] if run in runs]
        for run in chosen:
            check_trust(run, trust)
        display.stage("diagnose")
        found.append(diagnose(chosen, rows, progress=display.update))
    return found


def _branched(study: Study, run: Run, *, trust: bool, quiet: bool) -> Branched:
    """The critical batch of the study's target run, measured at its newest checkpoint."""
    from froude.checkpoint.run_store import RunStore
    from froude.launch.display import Display
    from froude.train.api import check_trust
    from froude.train.local_critical_batch import branch

    check_trust(run, trust)
    display = Display(quiet=quiet)
    display.stage("branches")
    store = RunStore(study.location / "runs" / run.name, run.name)
    return branch(run, store, device="cpu" if run.device == "cpu" else "auto", progress=display.update)
