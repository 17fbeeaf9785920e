"""Was the forecast sealed before step 0, by what the log and the store's clock say?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from froude.promote.recipe import Recipe
from froude.promote.verify.verdict import Verdict
from froude.promote.witness import ABOUT, MOST_SKEW
from froude.runlog import LogReader, Record, record_name
from froude.schemas import TABLES
from froude.store import Location

SEALED = "the forecast was sealed before step 0"


def sealed(log: LogReader, recipe: Recipe, records: list[Record]) -> Iterator[Verdict]:
    """Every record names the recipe's hash, so none was written before it; reading the recipe has verified the hash.

    The times that a recipe and a record say are those of two hosts, whose clocks may differ. Where they contradict each
    other the store's times of the first record and the first results decide: a log that was written anew for a later
    seal is younger than the results that it commits.
    """
    others = [
        record.seq for record in records if record.recipe != recipe.sha256 or record.run != recipe.run.name
    ]
    fault = f"; record {others[0]} is of another recipe or run" if others else ""
    possible, clocks = _clocks(recipe, log.location, records)
    all_of = f"{len(records) - len(others)} of" if others else "all"
    seen = f"seal {recipe.sha256[:12]} named by {all_of} {len(records)} records{fault}; {clocks}"
    yield Verdict(SEALED, False if others else possible, seen)


def beside(place: Location, recipe: Recipe) -> Verdict:
    """Whether forecast.json, the copy for readers, says what the recipe has sealed."""
    try:
        content = json.loads((place / "forecast.json").read())
    except (OSError, ValueError):
        content = None
    says = (
        f"seal {str(content.get('sha256', ''))[:12]}"
        if isinstance(content, dict)
        else "nothing that can be read"
    )
    same = content == json.loads(recipe.forecast_json())
    if not same and says == f"seal {recipe.sha256[:12]}":
        says += " with other numbers"
    return Verdict("forecast.json says what was sealed", same, says)


def _clocks(recipe: Recipe, run: Location, records: list[Record]) -> tuple[bool | None, str]:
    """Whether the times can be of a seal before step 0, None if only the records' own say so; and the times.

    A copy is known by store times that are all later than the log's own.
    """
    first, sealed = records[0].time, datetime.fromisoformat(recipe.sealed_at)
    if sealed.tzinfo is None:
        sealed = sealed.replace(tzinfo=UTC)
    ahead = sealed - first
    seen = f"sealed at {sealed:%Y-%m-%d %H:%M:%S}, first record at {first:%Y-%m-%d %H:%M:%S} UTC"
    written = (run / "commits" / record_name(0)).modified()
    results = [part for record in records for part in record.parts if part.kind in TABLES][:1]
    stored = (run / results[0].path).modified() if results else None
    late = timedelta(0) if written is None or stored is None else written - stored
    copied = written is not None and stored is not None and min(written, stored) > records[-1].time
    if stored is not None and sealed - stored > MOST_SKEW:
        return False, f"{seen}; the first results are {_seconds(sealed - stored)} older than the seal"
    if late > ABOUT and not copied:
        seen += f"; the store's time of the first record is {_seconds(late)} after that of the first results, as in a "
        seen += "log that was restored or rewritten"
    if ahead > timedelta(0):
        seen += f"; the promoter's clock was {_seconds(ahead)} ahead of the first worker's, or the seal is that late"
        if late <= ABOUT or not copied or ahead > MOST_SKEW:
            return late <= ABOUT, seen
    if copied:
        seen += "; the store's times are those of a copy, so only the log says so: "
        seen += "verify where it was trained, or by a witness"
    return (None if copied or late > ABOUT else True), seen


def _seconds(time: timedelta) -> str:
    return f"{time.total_seconds():,.0f} s"
