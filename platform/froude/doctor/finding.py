"""What was found out: a verdict a check, for the person here in lines, for somebody else without names."""

from __future__ import annotations

import getpass
import math
import os
import re
import socket
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import Any, Literal

import froude

SCHEMA = 1
Verdict = Literal["ok", "warn", "fail"]
#: Of a line's text, and where it begins.
WIDTH, INDENT = 120, 24
#: What tells where a machine is or whose: URLs, paths, addresses of mails and of the two internet protocols.
TELLING = (
    (re.compile(r"\b\w+://\S+"), "<url>"),
    (re.compile(r"[\w.+-]+@[\w-]+\.[\w.-]+"), "<mail>"),
    (re.compile(r"(?<![\w.<])~?(?:/[\w.@+~-]+)+/?"), "<path>"),
    (re.compile(r"\b[A-Za-z]:\\\S+"), "<path>"),
    (re.compile(r"(?<![\d.])\d{1,3}(?:\.\d{1,3}){3}(?![\d.])"), "<address>"),
    (re.compile(r"(?<![\w:])(?:[0-9a-fA-F]{0,4}:){2,7}[0-9a-fA-F]{0,4}(?![\w:])"), "<address>"),
)


@dataclass(frozen=True)
class Finding:
    """One check's verdict, in a line, with what to do about it; `figures` in units of their names."""

    check: str
    verdict: Verdict
    line: str
    remedy: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Examination:
    """All findings of a machine; `gpu` says whether its GPUs were looked at."""

    gpu: bool
    findings: Sequence[Finding]

    @property
    def passed(self) -> bool:
        return all(each.verdict != "fail" for each in self.findings)

    def lines(self) -> list[str]:
        """A table: verdict, check, what was found; below it what to do."""
        rows = []
        for each in self.findings:
            words = each.line + (f": {each.remedy}" if each.remedy else "")
            first, *rest = textwrap.wrap(words, WIDTH - INDENT, break_on_hyphens=False) or [""]
            rows += [
                f"{each.verdict:<6}{each.check:<{INDENT - 6}}{first}",
                *(" " * INDENT + line for line in rest),
            ]
        counts = {
            kind: sum(each.verdict == kind for each in self.findings) for kind in ("ok", "warn", "fail")
        }
        return [*rows, ", ".join(f"{number} {kind}" for kind, number in counts.items())]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, without names of hosts and users, paths and addresses."""
        content = {
            "schema": SCHEMA,
            "froude": froude.__version__,
            "time": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
            "gpu": self.gpu,
            "passed": self.passed,
            "findings": [asdict(each) for each in self.findings],
        }
        found: dict[str, Any] = without_names(content)
        return found


def without_names(value: Any) -> Any:
    """The same with everything replaced that tells whose machine it is, or where; infinities and NaN are null."""
    if isinstance(value, Mapping):
        return {without_names(str(key)): without_names(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_names(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if not isinstance(value, str):
        return value
    for pattern, word in TELLING:
        value = pattern.sub(word, value)
    for name, word in _names().items():
        value = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", word, value, flags=re.IGNORECASE)
    return value


@cache
def _names() -> dict[str, str]:
    """This host's and this user's names, the longest first; those of one or two letters would be found everywhere."""
    host = socket.gethostname()
    found = dict.fromkeys((host, host.partition(".")[0], os.environ.get("HOSTNAME", "")), "<host>")
    try:
        found[getpass.getuser()] = "<user>"
    except (OSError, KeyError):  # a user without a name
        pass
    return {name: found[name] for name in sorted(found, key=len, reverse=True) if len(name) > 2}
