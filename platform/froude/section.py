"""A frozen table of settings, whose errors a user can mend."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError


class ConfigError(ValueError):
    """A value that a user can mend: one or two lines with the rule, the value and the remedy."""


def _explain(error: ValidationError, section: str, known: Mapping[str, list[str]]) -> str:
    lines = []
    for item in error.errors():
        cause = item.get("ctx", {}).get("error")
        if isinstance(cause, ConfigError):  # already worded, by a section or by a rule
            lines.append(str(cause))
            continue
        path = [section, *(str(part) for part in item["loc"])] if section else [str(p) for p in item["loc"]]
        key = ".".join(path)
        if item["type"] == "extra_forbidden":
            names = known.get(".".join(path[:-1]), [])
            near = difflib.get_close_matches(path[-1], names, n=1, cutoff=0.4)
            hint = (
                f"did you mean `{'.'.join([*path[:-1], near[0]])}`?" if near else f"known: {', '.join(names)}"
            )
            lines.append(f"unknown key `{key}`; {hint}")
        elif item["type"] == "missing":
            lines.append(f"`{key}` is required and missing; add it")
        else:
            rule = item["msg"].replace("Input should be", "must be")
            lines.append(f"`{key}` {rule}, but got {item['input']!r}")
    return "; ".join(dict.fromkeys(lines))


class Section(BaseModel):
    """A frozen table of settings; unknown keys and wrong types are a ConfigError that names the key."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
    section: ClassVar[str] = ""

    def __init__(self, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            known = {self.section: list(type(self).model_fields)}
            raise ConfigError(_explain(error, self.section, known)) from None
