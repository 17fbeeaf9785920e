"""How the best rate follows tokens and batch, the best decay tokens, and beta2's half-life the batch: exponents."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import polars as pl

from froude.laws.drawing.panel import Panel
from froude.laws.law import Law
from froude.laws.lr.exponent import Exponent, exponent
from froude.laws.stats.frames import Array, Mask, collect, read
from froude.laws.stats.results import Status


class Knob(NamedTuple):
    """An exponent to measure, of the best `setting` over a size, with what is held; and its prior, mean and sd."""

    setting: str
    over: str
    held: tuple[str, ...]
    tuned: tuple[str, ...]
    prior: tuple[float, float]
    words: str


_ALWAYS = ("params", "width", "depth", "optimizer", "schedule", "parametrization")
#: Priors of the rate: the published exponents over tokens lie on both sides of 0; Adam's root rule over batch. Those of
#: decay and beta2 are centred on Bergsma et al. 2505.13738 and on a constant half-life (Marek et al. 2507.07101), as
#: wide as that over tokens.
KNOBS = {
    "lr_tokens": Knob(
        "lr",
        "tokens",
        (*_ALWAYS, "batch", "timescale", "half_life"),
        (),
        (-0.1, 0.25),
        "best rate over tokens",
    ),
    "lr_batch": Knob(
        "lr", "batch", (*_ALWAYS, "tokens", "timescale", "half_life"), (), (0.5, 0.15), "best rate over batch"
    ),
    "timescale_tokens": Knob(
        "timescale",
        "tokens",
        (*_ALWAYS, "batch", "half_life"),
        ("lr",),
        (-0.527, 0.25),
        "best decay timescale over tokens",
    ),
    "half_life_batch": Knob(
        "half_life",
        "batch",
        (*_ALWAYS, "tokens", "timescale"),
        ("lr",),
        (0.0, 0.25),
        "best half-life of beta2 over batch",
    ),
}
#: Why there is no curve of the rate where the weight decay stays.
CONFOUNDED = (
    "the decay timescale moves with the rate, so that their exponents cannot be told apart; sweep at a fixed timescale "
    "(froude.space.Exponents)"
)
#: Of `Exponents.table()`.
COLUMNS: dict[str, type[pl.DataType]] = {
    "exponent": pl.String,
    **dict.fromkeys(("measured", "low", "high"), pl.Float64),
    "sizes": pl.Int64,
    "status": pl.String,
    **dict.fromkeys(("posterior", "posterior_low", "posterior_high", "prior", "prior_sd"), pl.Float64),
    "source": pl.String,
}


@dataclass(frozen=True, eq=False)
class Exponents(Law):
    """The exponents of a sweep by name (`KNOBS`), each a law of its own; only those whose runs there are."""

    knobs: Mapping[str, Exponent]

    def __getitem__(self, name: str) -> Exponent:
        return self.knobs[name]

    def table(self) -> pl.DataFrame:
        """Return a row an exponent: `exponent, measured, low, high, sizes, status, posterior, …, prior, sd, source`.

        Intervals are at 90%.
        """
        rows = [
            {
                "exponent": KNOBS[name].words,
                "measured": law.measured.value,
                "low": law.measured.low,
                "high": law.measured.high,
                "sizes": law.sizes,
                "status": law.status,
                "posterior": law.posterior.value,
                "posterior_low": law.posterior.low,
                "posterior_high": law.posterior.high,
                "prior": law.prior[0],
                "prior_sd": law.prior[1],
                "source": law.source,
            }
            for name, law in self.knobs.items()
        ]
        return pl.DataFrame(rows, schema=COLUMNS)

    def lines(self) -> list[str]:
        """The same in words, with published exponents beside."""
        return [sentence(name, law) for name, law in self.knobs.items()]

    def residuals(self) -> tuple[Array, Array, Mask] | None:
        """None: a row may lie on curves of two exponents; each has its own."""
        return None

    def drawing(self) -> tuple[Panel, ...]:
        """The figures of all, side by side."""
        return tuple(panel for law in self.knobs.values() for panel in law.drawing())


def sentence(name: str, law: Exponent) -> str:
    """What was found of an exponent, and what was published."""
    p = law.posterior
    found = f"{p.value:+.2f} [{p.low:+.2f}, {p.high:+.2f}] with the prior ({'; '.join(law.reasons)})"
    if law.source == "measured":
        m = law.measured
        found = f"{m.value:+.2f} [{m.low:+.2f}, {m.high:+.2f}] measured at {law.sizes} values"
    others = ", ".join(f"{each.value:+.2f} {each.name}" for each in law.published)
    return f"{KNOBS[name].words}: {found}; published: {others}"


def exponents(frame: pl.DataFrame | pl.LazyFrame) -> Exponents:
    """Fit every exponent of `KNOBS` that rows of `Study.trials()` have curves for.

    Columns `lr, tokens, batch, loss`, and where they are there `weight_decay, beta2, seed` and what tells models and
    optimizers apart. The decay timescale is batch / (lr · weight_decay · tokens), the half-life of beta2 batch ·
    ln(1/2) / ln(beta2). A curve is of one setting, all others held, so a weight decay that stays while rate or tokens
    move gives none: the reasons then say that rate and decay are confounded. Status is the first that is not ok.
    Raises as `froude.laws.stats.frames.read` does.
    """
    table = settings(read(frame, ["lr", "tokens", "batch"], loss=True).frame)
    found = {}
    for name, knob in KNOBS.items():
        if knob.setting not in table.columns:
            continue
        held = [each for each in knob.held if each in table.columns]
        law = exponent(
            table.filter(pl.col(knob.setting).is_not_null()),
            knob.setting,
            knob.over,
            held=held,
            tuned=knob.tuned,
            prior=knob.prior,
        )
        if law.levels.height:
            found[name] = law
        elif "timescale" in held and _swept(table, knob, held):
            found[name] = replace(law, reasons=(CONFOUNDED,))
    status: Status = next((law.status for law in found.values() if law.status != "ok"), "ok")
    reasons = tuple(f"{KNOBS[name].words}: {reason}" for name, law in found.items() for reason in law.reasons)
    if not found:
        status, reasons = "too_few_points", ("no setting was swept with all others held",)
    return Exponents(
        status=status, reasons=reasons, sample=read(table, ["lr", "tokens", "batch"], loss=True), knobs=found
    )


def settings(frame: pl.DataFrame | pl.LazyFrame) -> pl.DataFrame:
    """Return the rows with `timescale` and `half_life`, null where there is no decay or no beta2."""
    table = collect(frame)
    decay, beta2 = pl.col("weight_decay"), pl.col("beta2")
    new = []
    if "weight_decay" in table.columns:
        new.append(
            pl.when(decay > 0)
            .then(pl.col("batch") / (pl.col("lr") * decay * pl.col("tokens")))
            .alias("timescale")
        )
    if "beta2" in table.columns:
        new.append(
            pl.when(beta2.is_between(0, 1, closed="none"))
            .then(pl.col("batch") * math.log(0.5) / beta2.log())
            .alias("half_life")
        )
    return table.with_columns(new)


def _swept(table: pl.DataFrame, knob: Knob, held: list[str]) -> bool:
    """Whether there would be curves if the decay timescale were not held."""
    rest = [each for each in held if each != "timescale"]
    return exponent(table, knob.setting, knob.over, held=rest, tuned=knob.tuned).levels.height > 0
