"""Which rule of width the code breaks, from probes of a run at several widths.

The rules are the powers in the table of the run's parametrization (`froude.parametrizations`), where hidden matrices
start with variance 1/fan_in, embeddings and readout alike. One that promises no transfer, as SP, leaves it open whether
any of them starts alike or with variance 1/fan_in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from froude.parametrizations import Kind, Powers
from froude.train.probe.roles import TensorRole, roles, tables
from froude.train.probe.updates import Measured, Probe

#: Slopes of single updates are exact; those of random tensors are averages over a thousand entries or more.
EXACT, SAMPLED = 0.1, 0.2
#: What epsilon must leave of an update in the median: sqrt(v) >= 10 epsilon.
UNDAMPED = 10 / 11


@dataclass(frozen=True)
class Cause:
    """A broken rule: `measured` against `expected` exponent of width (for epsilon, share of an update).

    `off`: octaves by which it is wrong for an octave of width (for epsilon, octaves that an update loses).
    """

    name: str
    where: str
    measured: float
    expected: float
    off: float
    text: str

    def line(self) -> str:
        """The name, the place, the rule and, where there are numbers, by how much it is broken."""
        numbers = (
            f"; {self.measured:+.2f} instead of {self.expected:+.2f}" if math.isfinite(self.measured) else ""
        )
        return f"{self.name} ({self.where}): {self.text}{numbers}"


#: What is said of a rule that has no text of its own here.
OTHERWISE = "must scale with width as the parametrization's table says"
#: What a model does about a broken rule; helpers are those of `froude.train.parametrization`. Rates and decay are the
#: package's own: they are wrong where `kinds()` gives a parameter the wrong kind.
REMEDIES = {
    "initialisation": "draw hidden matrices with sd fan_in**-0.5, embeddings and readout with one sd at every width",
    "hidden_lr": "kinds() must call these parameters hidden",
    "other_lr": "kinds() must not call these parameters hidden",
    "weight_decay": "correct the kinds that kinds() gives these parameters",
    "tied_embeddings": 'multiply logits by multiplier(run, "logits") once; kinds() calls the table embedding',
    "output_multiplier": 'multiply logits by multiplier(run, "logits")',
    "attention_scale": 'multiply attention logits by multiplier(run, "attention")',
    "epsilon": "lower `optimizer.eps`",
}


@dataclass(frozen=True)
class Exponent:
    """How something scales with width: the median over its tensors, and what the rule says; NaN: it says nothing."""

    what: str
    of: str
    exponent: float
    rule: float


class Examined:
    """Probes of a run at two or more widths (equal in everything else but head_dim), and the exponents they show."""

    def __init__(self, probes: Sequence[Probe]) -> None:
        self.probes = probes
        self.runs = [probe.run for probe in probes]
        self.promised = self.runs[0].width_rules
        self.roles = roles(self.runs)
        self.widths = np.log([run.model.width for run in self.runs])
        self.makes_logits = [name for name, t in probes[0].tensors.items() if t.logits]
        self.tied = bool(self.makes_logits) and self.makes_logits == tables(self.runs)

    def rule(self, name: str) -> Powers:
        """What the exponents of one tensor are to be, by its shape and by whether it makes logits."""
        kinds: dict[TensorRole, Kind] = {"matrix": "hidden", "table": "embedding", "other": "norm"}
        kind = kinds[self.roles[name]]
        if kind == "embedding" and name in self.makes_logits and not self.tied:
            kind = "readout"
        optimizer = self.runs[0].optimizer
        family = optimizer.family(matrix=kind == "hidden")
        powers = self.promised.powers(kind, family, optimizer.decay_width)
        return replace(powers, init=powers.init - 0.5) if kind == "hidden" else powers

    def exponent(self, values: Sequence[float], over: NDArray[np.float64] | None = None) -> float:
        """Slope of ln values over ln width (or `over`); NaN where one is zero, or no number."""
        if not all(math.isfinite(value) and value > 0 for value in values):
            return math.nan
        return float(np.polyfit(self.widths if over is None else over, np.log(values), 1)[0])

    def of(self, name: str, measure: Callable[[Measured], float]) -> float:
        """The exponent of one tensor's number."""
        return self.exponent([measure(probe.tensors[name]) for probe in self.probes])

    def all(self, role: TensorRole, measure: Callable[[Measured], float]) -> dict[str, float]:
        """The exponents of all tensors of a role that have one."""
        found = {name: self.of(name, measure) for name, its in self.roles.items() if its == role}
        return {name: value for name, value in found.items() if math.isfinite(value)}

    @property
    def multiplier(self) -> float:
        """The exponent of what logits are multiplied by: a random table of size 1 gives sqrt(width) times it."""
        found = [self.of(name, lambda t: t.logits) for name in self.makes_logits]
        return float(np.mean(found)) - 0.5 if found else math.nan

    @property
    def attention(self) -> float:
        """The exponent over d_head of attention logits as built, where queries and keys are not yet aligned."""
        heads = np.log([run.model.head_dim for run in self.runs])
        return self.exponent([p.attention for p in self.probes], heads) if np.ptp(heads) > 0 else math.nan

    @property
    def rule_of_attention(self) -> float:
        """What that is to be: a sum of d_head random terms goes as its root by itself."""
        return self.promised.attention + 0.5


def causes(examined: Examined) -> list[Cause]:
    """The rules that are broken, the one that is furthest off first."""
    output = list(_output(examined))
    told = examined.makes_logits if any(cause.name == "tied_embeddings" for cause in output) else []
    found = [*_initialisation(examined), *_rates(examined, told), *_decay(examined, told), *output]
    if not any(cause.name == "initialisation" for cause in found):  # queries and keys of another size
        found += _attention(examined)
    return sorted([*found, *_epsilon(examined)], key=lambda cause: -cause.off)


def exponents(examined: Examined) -> list[Exponent]:
    """All that is judged, as a table; and how far real updates moved the tensors."""
    rows = []
    for role, of in NAMES.items():
        for what, measure, rule in COLUMNS:
            found = examined.all(role, measure)
            if found and not (role == "other" and what == "initial RMS"):
                rules = [rule(examined.rule(name)) for name in found]
                rows.append(Exponent(what, of, _median(list(found.values())), _median(rules)))
    rows.append(Exponent("multiplier", "logits", examined.multiplier, examined.promised.logits))
    rows.append(Exponent("size as built", "attention logits", examined.attention, examined.rule_of_attention))
    return [row for row in rows if math.isfinite(row.exponent)]


NAMES: dict[TensorRole, str] = {
    "matrix": "hidden matrices",
    "table": "embeddings and readout",
    "other": "norms, biases",
}
#: What is reported of each role, how it is measured, and its rule.
COLUMNS: tuple[tuple[str, Callable[[Measured], float], Callable[[Powers], float]], ...] = (
    ("initial RMS", lambda t: t.init, lambda rule: rule.init),
    ("rate", lambda t: t.lr, lambda rule: rule.lr),
    ("rate times decay", lambda t: t.decay, lambda rule: rule.lr + rule.weight_decay),
    ("moved by ten updates", lambda t: t.moved, lambda rule: math.nan),
)


def _initialisation(examined: Examined) -> Iterator[Cause]:
    leeway = 0.0 if examined.promised.transfers else 0.5
    matrices, embeddings = examined.all("matrix", lambda t: t.init), examined.all("table", lambda t: t.init)
    rules = {name: examined.rule(name).init for name in (*matrices, *embeddings)}
    texts = {-0.5: "hidden matrices must start with variance 1/fan_in"}
    yield from _broken("initialisation", matrices, rules, SAMPLED, texts, above=leeway)
    texts = {0.0: "embeddings and readout must start alike at each width"}
    yield from _broken("initialisation", embeddings, rules, SAMPLED, texts, below=leeway)


def _rates(examined: Examined, told: Sequence[str]) -> Iterator[Cause]:
    rates = {role: examined.all(role, lambda t: t.lr) for role in NAMES}
    rules = {name: examined.rule(name).lr for found in rates.values() for name in found}
    text = "under this parametrization their rate must fall"
    texts = {-1.0: f"{text} as 1/width", 0.0: "under this parametrization their rate must not fall"}
    yield from _broken("hidden_lr", rates["matrix"], rules, EXACT, texts)
    for role in ("table", "other"):
        found = {name: value for name, value in rates[role].items() if name not in told}
        yield from _broken("other_lr", found, rules, EXACT, {0.0: "their rate must not depend on width"})


def _decay(examined: Examined, told: Sequence[str]) -> Iterator[Cause]:
    """Of the decay by itself, so that a wrong rate is not reported twice."""
    text = "decay must rise as their rate falls, so that each update shrinks weights by the same share"
    for role in ("matrix", "table"):
        decays = examined.all(role, lambda t: t.decay / t.lr if t.lr else math.nan)
        decays = {name: value for name, value in decays.items() if name not in told}
        rules = {name: examined.rule(name).weight_decay for name in decays}
        yield from _broken("weight_decay", decays, rules, EXACT, dict.fromkeys((0.0, 1.0), text))


def _output(examined: Examined) -> Iterator[Cause]:
    """Multiplier times rate is what moves logits; which of the two is wrong is told apart."""
    if not examined.makes_logits:
        return
    multiplier, rule = examined.multiplier, examined.promised.logits
    where = ", ".join(examined.makes_logits)
    both = multiplier + float(np.mean([examined.of(name, lambda t: t.lr) for name in examined.makes_logits]))
    moves = rule + float(np.mean([examined.rule(name).lr for name in examined.makes_logits]))
    if rule and examined.tied and both < moves - SAMPLED:
        text = "a tied table must keep its rate, and logits must be divided by the width only once"
        yield Cause("tied_embeddings", where, both, moves, moves - both, f"{text}: multiplier times rate")
    elif abs(multiplier - rule) > SAMPLED and abs(both - moves) > SAMPLED:
        texts = {-1.0: "logits must be divided by the width", 0.0: "logits must not be scaled by width"}
        text = texts.get(rule, OTHERWISE)
        yield Cause("output_multiplier", where, multiplier, rule, abs(multiplier - rule), text)


def _attention(examined: Examined) -> Iterator[Cause]:
    found, rule = examined.attention, examined.rule_of_attention
    if abs(found - rule) > SAMPLED:
        by = {-0.5: "d_head", 0.0: "its root"}.get(rule, f"d_head^{0.5 - rule:g}")
        text = f"attention logits must be divided by {by}: their size as built, over d_head"
        yield Cause("attention_scale", "attention", found, rule, abs(found - rule), text)


def _epsilon(examined: Examined) -> Iterator[Cause]:
    shares = {name: [probe.tensors[name].undamped for probe in examined.probes] for name in examined.roles}
    least = {
        name: min((share for share in found if math.isfinite(share)), default=1.0)
        for name, found in shares.items()
    }
    damped = {name: share for name, share in least.items() if share < UNDAMPED}
    if damped:
        worst = min(damped.values())
        text = (
            "epsilon must be below a tenth of sqrt(v), or updates shrink with the gradient: share of it left"
        )
        yield Cause("epsilon", _named(list(damped)), worst, 1.0, -math.log2(max(worst, 1e-9)), text)


def _broken(
    name: str,
    found: Mapping[str, float],
    rules: Mapping[str, float],
    tolerance: float,
    texts: Mapping[float, str],
    *,
    below: float = 0.0,
    above: float = 0.0,
) -> Iterator[Cause]:
    """One cause for all tensors whose exponent lies off its rule, or off what it may be below and above it."""
    off = {t: max(rules[t] - below - value, value - (rules[t] + above)) for t, value in found.items()}
    wrong = [tensor for tensor, by in off.items() if by > tolerance]
    if wrong:
        measured, rule = (_median([values[tensor] for tensor in wrong]) for values in (found, rules))
        expected = min(max(measured, rule - below), rule + above)
        text = texts.get(rule, OTHERWISE)
        yield Cause(name, _named(wrong), measured, expected, max(off.values()), text)


def _median(values: Sequence[float]) -> float:
    return float(np.median(values))


def _named(tensors: Sequence[str]) -> str:
    return tensors[0] if len(tensors) == 1 else f"{tensors[0]} and {len(tensors) - 1} more"
