"""The report as a document: complete, self-contained, honest about what is missing."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import polars as pl
import pytest
from matplotlib.figure import Figure

from froude import Study, schemas
from froude.promote.promotion import parameters, promote
from froude.promote.recipe import read
from froude.report import FILE, render, write
from froude.report.document import document
from froude.report.view import View, gather
from froude.store import Location

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    Promoted = Any  # of conftest.py, which is no module to import from

SECTIONS = ["forecast", "elastic", "rate", "critical", "loss", "checks", "trials", "query"]


class Page(HTMLParser):
    """What a browser would see: ids, references, tags and the visible text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.references: list[str] = []
        self.tags: list[str] = []
        self.words: list[str] = []
        self.hidden = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.hidden = tag in ("style", "script")
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("href", "src", "xlink:href", "srcset", "action", "data", "poster"):
                self.references.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        self.hidden = False

    def handle_data(self, data: str) -> None:
        if not self.hidden:
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are laid out but not drawn: that takes most of a report's time."""

    def savefig(figure: Figure, sink: TextIO, **_: object) -> None:
        sink.write('<svg viewBox="0 0 1 1"></svg>')

    monkeypatch.setattr(Figure, "savefig", savefig)


@pytest.fixture(scope="module")
def html(finished: Study, promoted: Promoted) -> str:
    return render(finished, fits=promoted.fits)


@pytest.fixture(scope="module")
def view(finished: Study, promoted: Promoted) -> View:
    return gather(finished, fits=promoted.fits)


def test_it_needs_nothing_from_outside(html: str) -> None:
    page = Page(html)
    assert {ref for ref in page.references if not ref.startswith("#")} == {"data:,"}
    assert not {"script", "iframe", "img", "object", "embed"} & set(page.tags)
    assert "@import" not in html
    assert set(re.findall(r"url\((.)", html)) <= {"#"}
    urls = set(re.findall(r"https?://[^\s\"'<]+", html))
    assert urls <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert "default-src 'none'" in html


def test_no_id_stands_twice_and_every_reference_has_its_target(html: str) -> None:
    page = Page(html)
    assert len(page.ids) == len(set(page.ids))
    targets = {ref[1:] for ref in page.references if ref.startswith("#")} | set(
        re.findall(r"url\(#([^)]+)\)", html)
    )
    assert targets <= set(page.ids)
    assert page.tags.count("svg") == 12  # two of them twice, for wide and for narrow screens


def test_a_check_that_warns_is_told(view: View) -> None:
    value = "768 against 340 tokens"
    checks = [
        replace(check, passed=False, value=value) if check.name == "batch_below_critical" else check
        for check in view.recipe.checks
    ]
    text = Page(document(replace(view, recipe=replace(view.recipe, checks=checks)))).text
    assert f"Warning: batch_below_critical. {value}; " in text


def test_sections_come_in_the_order_of_what_matters(html: str) -> None:
    assert [name for name in Page(html).ids if name in SECTIONS] == SECTIONS


def test_every_colour_is_defined_for_light_and_dark(html: str) -> None:
    light, dark = re.findall(r":root \{(.*?)\}", html, re.DOTALL)[:2]
    used = set(re.findall(r"var\(--([\w-]+)\)", html)) - {"natural"}
    for scheme in (light, dark):
        assert used <= set(re.findall(r"--([\w-]+):", scheme))
    assert "prefers-color-scheme: dark" in html


def test_the_headline_has_forecast_actual_and_the_failures(html: str, promoted: Promoted, view: View) -> None:
    text, forecast = Page(html).text, promoted.recipe.forecast
    head = text[: text.index("Loss over the run")]
    assert f"forecast to end at {forecast.loss:.3f} nats per token (90% interval" in head
    assert "It ended at 1.245, inside the interval" in head
    assert "3 → 2 → 3" in head
    assert "2 restarts" in head
    assert view.elastic is not None
    assert ", ".join(f"{value:.1f}" for value in view.elastic.recovery_seconds) in head
    assert "of 998 400 planned" in head
    assert promoted.recipe.sha256 in text


def test_what_limits_the_forecast_is_said_in_words(html: str) -> None:
    text = Page(html).text
    assert "Prior-driven." in text
    assert "weighed by a prior (α = 0.4 ± 0.2, β = 0.4 ± 0.2)" in text
    assert "Not certified." in text
    assert "2 checks overridden." in text
    assert "five rates suffice for a joint fit" in text
    assert "The fit with free exponents says" in text


def test_no_number_is_missing_or_not_a_number(html: str) -> None:
    assert not re.findall(
        r"\b(nan|inf|None|null|undefined|True|False)\b", Page(html).text.split("import froude")[0]
    )


def test_fits_and_trials_are_shown(html: str, view: View) -> None:
    text = Page(html).text
    assert "SP: −1.00" in text
    assert "b_crit 340" in text
    for run in view.trials["run"]:
        assert run in text
    for check in view.checks:
        assert check.name in text


def test_the_head_says_what_was_trained_on_what(html: str) -> None:
    text = Page(html).text
    head = text[: text.index("Forecast against actual")]
    assert "Transformer (froude.train.model) on KingJames (froude.train.data.kjv)." in head
    assert "Model class Transformer (froude.train.model) Corpus KingJames (froude.train.data.kjv)" in text


def test_a_corpus_of_ones_own_is_named_by_file_and_hash(view: View, undrawn: None, tmp_path: Path) -> None:
    assert view.recipe is not None
    (tmp_path / "pile.txt").write_text("some text")
    own = {"data": {"source": "froude.train.data.text:Text", "path": str(tmp_path / "pile.txt")}}
    own |= {"model.factory": "gpt.adapter:GPT2"}
    run = view.recipe.run.replace(own)
    text = Page(document(replace(view, recipe=replace(view.recipe, run=run)))).text
    assert (
        f"GPT2 (gpt.adapter) on Text (froude.train.data.text): pile.txt, SHA-256 {run.data.sha256[:12]}…"
        in text
    )


def test_a_swept_study_says_what_it_trains_before_it_is_promoted(view: View, undrawn: None) -> None:
    text = Page(document(replace(view, recipe=None, elastic=None, score=None, account=None))).text
    assert "Transformer (froude.train.model) on KingJames (froude.train.data.kjv)." in text
    history = {"source": "runs.csv", "stages": {}}
    assert "Runs that froude did not train, from runs.csv." in Page(
        document(replace(view, recipe=None, elastic=None, score=None, account=None, meta=history))
    ).text  # fmt: skip


def test_every_table_that_scrolls_has_the_hint(html: str) -> None:
    """How high the hint is, nothing where the table fits, is the style's."""
    assert html.count('<div class="scroll') == html.count('class="hint" aria-hidden="true"') > 3
    assert "scroll sideways for more" in Page(html).text
    assert "clamp(0px, (100% - 100cqw)" in html


def test_a_check_without_its_stage_is_not_measured(promoted: Promoted, tmp_path: Path, undrawn: None) -> None:
    study = promoted.copy(tmp_path / "unbatched")
    for name in ("recipe.toml", "forecast.json"):
        (study.location / name).delete()
    for file in (study.location / "trials").path.iterdir():
        if pl.read_parquet(file)["stage"][0] == "batch":
            file.unlink()
    meta = study.meta
    del meta["stages"]["batch"]
    (study.location / "study.json").replace(json.dumps(meta).encode())
    recipe = promote(study, overrides=promoted.recipe.overrides)
    found = {check.name: check for check in read(study.location).checks}
    assert found == {check.name: check for check in recipe.checks}
    for name in ("batch_edge", "batch_below_critical"):
        assert not found[name].passed
        assert found[name].value == "not measured: no trials of the role critical_batch"
    text = Page(render(study)).text
    assert "Not measured. batch_edge and batch_below_critical: no trials of the role critical_batch." in text
    assert re.search(
        r"batch_edge not measured: no trials .{0,90} not measured to find out, sweep a stage", text
    )
    assert "Warning: batch" not in text


def test_names_from_a_study_are_escaped(view: View, undrawn: None) -> None:
    hostile = "<img src=x onerror=alert(1)>"
    html = document(
        replace(view, name=hostile, problems=(hostile + " `" + hostile + "`",), meta={"space": hostile})
    )
    assert "<img" not in html
    assert html.count("&lt;img src=x") >= 4


def test_an_empty_study_has_a_report(tmp_path: Path) -> None:
    html = render(Study(tmp_path / "empty"))
    text = Page(html).text
    assert "An empty study" in text
    assert "froude sweep" in text
    assert "<svg" not in html
    assert [name for name in Page(html).ids if name in SECTIONS] == SECTIONS


def test_a_swept_study_shows_what_the_gate_would_say(
    promoted: Promoted, tmp_path: Path, undrawn: None
) -> None:
    study = promoted.copy(tmp_path / "swept")
    (study.location / "recipe.toml").delete()
    text = Page(render(study, fits=promoted.fits)).text
    assert "no recipe: nothing has been forecast yet" in text
    assert "this is what the gate would say now" in text
    assert "lr_points" in text
    assert "No recipe yet" in text
    assert "The run has not begun" in text


@pytest.mark.parametrize("stages", [[], ["recipe"], ["recipe", "transfer"], ["recipe", "transfer", "batch"]])
def test_a_study_between_two_stages_has_a_report(
    promoted: Promoted, tmp_path: Path, stages: list[str], undrawn: None
) -> None:
    study = promoted.copy(tmp_path / "sweeping")
    (study.location / "recipe.toml").delete()
    for file in (study.location / "trials").path.iterdir():
        if pl.read_parquet(file)["stage"][0] not in stages:
            file.unlink()
    html = render(study)
    assert Page(html).tags.count("svg") == 3 * ("transfer" in stages) + ("batch" in stages)
    assert "No finished trials of the role loss_law yet" in Page(html).text


def test_a_recipe_whose_run_has_not_begun(promoted: Promoted, tmp_path: Path, undrawn: None) -> None:
    text = Page(render(promoted.copy(tmp_path / "sealed"), fits=promoted.fits)).text
    assert "It has not begun." in text
    assert "not finished" in text


def test_a_run_under_way(promoted: Promoted, tmp_path: Path, undrawn: None) -> None:
    view = gather(promoted.copy(tmp_path / "running", lives=2), fits=promoted.fits)
    text = Page(document(view)).text
    assert "It is at step 900 of 1300 (69%)." in text
    assert "3 → 2" in text
    assert view.actual is None
    assert view.account is None


def test_what_the_spike_policy_did_is_told_once(view: View, undrawn: None) -> None:
    assert "Spikes" not in Page(document(view)).text
    rows = {"action": ["rollback"], "step": [501], "batch": [500], "why": ["the loss has not come back"]}
    text = Page(document(replace(view, actions=pl.DataFrame(rows)))).text
    assert "rollback 501 500 the loss has not come back" in text


def test_a_recipe_edited_by_hand_is_not_used(promoted: Promoted, tmp_path: Path, undrawn: None) -> None:
    study = promoted.copy(tmp_path / "edited")
    file = (study.location / "recipe.toml").path
    file.write_text(file.read_text().replace('name = "large"', 'name = "larger"'))
    text = Page(render(study, fits=promoted.fits)).text
    assert "The recipe is not used here: a recipe must stay as it was sealed" in text
    assert "no recipe: nothing has been forecast yet" in text


def test_a_damaged_log_is_reported_and_the_rest_stays(
    promoted: Promoted, tmp_path: Path, undrawn: None
) -> None:
    study = promoted.copy(tmp_path / "damaged", lives=3)
    (study.location / "runs" / "large" / "commits" / "00000002.parquet").delete()
    text = Page(render(study, fits=promoted.fits)).text
    assert "The target run could not be read" in text
    assert "Its outcome could not be read." in text
    assert "not begun" not in text
    assert "SP slope −1.00" in text


def test_trials_that_came_after_the_seal_are_noticed(view: View, undrawn: None) -> None:
    assert view.fits is not None
    later = replace(view.fits, fingerprints={**view.fits.fingerprints, "search": "0" * 64})
    assert "Trials have changed since the recipe was sealed" in Page(document(replace(view, fits=later))).text


def test_write_replaces_the_report_in_the_study(promoted: Promoted, tmp_path: Path, undrawn: None) -> None:
    study = promoted.copy(tmp_path / "written")
    first = write(study, fits=promoted.fits)
    assert first == Location.parse(tmp_path / "written" / FILE)
    (study.location / FILE).replace(b"old")
    write(study, fits=promoted.fits)
    assert first.read().decode().startswith("<!doctype html>")
    assert Study(study.location).trials().collect().height


def test_a_foreign_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").touch()
    with pytest.raises(ValueError, match="hold only its own files"):
        write(Study(tmp_path))


def test_a_study_that_cannot_be_fitted_says_why(promoted: Promoted, tmp_path: Path, undrawn: None) -> None:
    study = promoted.copy(tmp_path / "unfitted")
    file = study.location.path / "trials" / "search-0.parquet"
    frame = pl.read_parquet(file).with_columns(stage=pl.lit("law"), params=pl.lit(0, pl.Int64))
    frame.select(schemas.TRIALS.names).write_parquet(file)
    (study.location / "recipe.toml").delete()
    text = Page(render(study)).text
    assert "The laws could not be fitted" in text
    assert "params" in text


def test_the_target_of_the_law_is_the_promoted_run(view: View) -> None:
    assert view.recipe is not None
    assert view.target == pytest.approx((parameters(view.recipe.run), 998_400))
