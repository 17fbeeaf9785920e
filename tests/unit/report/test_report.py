"""The report as a document: complete, self-contained, honest about what is missing."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import polars as pl
import pytest
from matplotlib.figure import Figure

from froude import Study, records
from froude.promote.promotion import parameters
from froude.report import FILE, render, write
from froude.report.document import document
from froude.report.view import View, gather
from froude.report.words import query
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
    assert page.tags.count("svg") == 10  # two of them twice, for wide and for narrow screens


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
    assert "come from a prior (α = 0.35 ± 0.1, β = 0.35 ± 0.1)" in text
    assert "Not certified." in text
    assert "2 checks overridden." in text
    assert "five rates suffice for a joint fit" in text
    assert "Warning: batch_below_critical." in text
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


def test_names_from_a_study_are_escaped(view: View, undrawn: None) -> None:
    hostile = "<img src=x onerror=alert(1)>"
    html = document(
        replace(view, name=hostile, problems=(hostile + " `" + hostile + "`",), meta={"space": hostile})
    )
    assert "<img" not in html
    assert html.count("&lt;img src=x") >= 4


def test_the_query_says_that_no_token_was_lost(view: View) -> None:
    assert answer(view) == {"expected": 998_400, "skipped": 0, "repeated": 0, "skipped_by_policy": 0}
    assert answer_of_readme(view.url) == answer(view)


@pytest.mark.parametrize(
    ("tamper", "skipped", "repeated", "by_policy"),
    [
        (lambda rows: rows.slice(1), 64, 0, 0),
        (lambda rows: pl.concat([rows, rows.slice(5, 2)]), 0, 128, 0),
        (lambda rows: rows.with_columns(first_sample=pl.col("first_sample").replace({7: 8})), 64, 64, 0),
        (lambda rows: rows.with_columns(step=pl.col("step").replace({3: 2})), 12 * 64, 12 * 64, 0),
        # The plan then begins after what was left out: all others are in another step than theirs.
        (
            lambda rows: rows.with_columns(disposition=pl.lit("skipped_by_policy")),
            1300 * 768,
            867 * 768,
            433 * 768,
        ),
    ],
    ids=["lost", "repeated", "another sample", "another step", "not trained"],
)
def test_the_query_finds_a_tampered_ledger(
    promoted, tmp_path: Path, tamper, skipped: int, repeated: int, by_policy: int
) -> None:
    study = promoted.copy(tmp_path / "tampered", lives=3)
    (file,) = (study.location / "runs" / "large" / "parts").path.glob("ledger-g1-*.parquet")
    tamper(pl.read_parquet(file)).write_parquet(file)
    view = gather(study, fits=promoted.fits)
    assert answer(view) == {
        "expected": 998_400,
        "skipped": skipped,
        "repeated": repeated,
        "skipped_by_policy": by_policy,
    }
    assert answer_of_readme(study.location.url) == answer(view)
    assert view.account is not None
    assert view.account.repeated == repeated
    assert not view.account.whole


def answer(view: View) -> dict[str, int]:
    """Run the query that the report shows, and return what it prints."""
    code = query(view)
    assert code is not None
    return printed(code)


def answer_of_readme(study: str) -> dict[str, int]:
    """The same for the query in README.md, on this study."""
    text = (Path(__file__).parents[3] / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    return printed(code.replace('"runs/quickstart"', repr(study)))


def printed(code: str) -> dict[str, int]:
    shown: list[pl.DataFrame] = []
    exec(compile(code, "query", "exec"), {"print": shown.append})
    (frame,) = shown
    return frame.row(0, named=True)


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


def test_what_the_spike_ladder_did_is_told_once(view: View, undrawn: None) -> None:
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
    assert "The promoted run could not be read" in text
    assert "What became of it could not be read." in text
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
    with pytest.raises(ValueError, match="hold nothing else"):
        write(Study(tmp_path))


def test_a_study_that_cannot_be_fitted_says_why(promoted: Promoted, tmp_path: Path, undrawn: None) -> None:
    study = promoted.copy(tmp_path / "unfitted")
    file = study.location.path / "trials" / "search-0.parquet"
    frame = pl.read_parquet(file).with_columns(stage=pl.lit("law"), params=pl.lit(0, pl.Int64))
    frame.select(records.TRIALS.names).write_parquet(file)
    (study.location / "recipe.toml").delete()
    text = Page(render(study)).text
    assert "The laws could not be fitted" in text
    assert "params" in text


def test_the_target_of_the_law_is_the_promoted_run(view: View) -> None:
    assert view.recipe is not None
    assert view.target == pytest.approx((parameters(view.recipe.run), 998_400))
