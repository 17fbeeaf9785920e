"""A frozen table of settings, whose errors a user can correct."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import PydanticKnownError

#: Other tools' words for a Run's keys, in whichever table they are written.
SYNONYMS = {
    word: key
    for key, words in {
        "optimizer.lr": "lr learning_rate peak_lr max_lr base_lr",
        "optimizer.weight_decay": "weight_decay wd",
        "optimizer.beta1": "beta1 adam_beta1 b1 momentum",
        "optimizer.beta2": "beta2 adam_beta2 b2",
        "optimizer.eps": "eps epsilon adam_epsilon",
        "optimizer.clip": "clip grad_clip clip_grad max_grad_norm gradient_clip_val",
        "optimizer.name": "optim",
        "schedule.name": "lr_scheduler lr_scheduler_type scheduler",
        "schedule.warmup_tokens": "warmup_tokens warmup warmup_steps warmup_iters num_warmup_steps",
        "schedule.floor": "min_lr_ratio final_lr_fraction",
        "model.width": "width d_model hidden_size n_embd embed_dim dim hidden_dim",
        "model.depth": "depth n_layer n_layers num_layers num_hidden_layers layers",
        "model.head_dim": "head_dim d_head head_size n_head n_heads num_heads num_attention_heads",
        "model.context": "context seq_len seq_length sequence_length block_size context_length max_seq_len n_ctx "
        "max_position_embeddings",
        "model.vocab": "vocab vocab_size n_vocab",
        "model.softcap": "softcap logit_softcap logit_softcapping final_logit_softcapping",
        "model.z_loss": "z_loss z_loss_weight z_loss_coeff z_loss_coefficient z_loss_multiplier",
        "model.kv_heads": "kv_heads n_kv_heads num_kv_heads num_key_value_heads n_kv_head kv_head num_query_groups "
        "n_query_groups",
        "model.sliding_window": "sliding_window window window_size attention_window sliding_window_size",
        "model.global_every": "global_every sliding_window_pattern global_attn_every_n_layers",
        "model.documents": "documents document_mask document_masking doc_mask intra_document_masking "
        "reset_attention_mask block_causal",
        "model.rope_base": "rope_base rope_theta rotary_base rotary_emb_base",
        "model.rope_scaling": "rope_scaling rope_type rope_scaling_type",
        "model.rope_factor": "rope_factor rope_scaling_factor scaling_factor",
        "model.rope_original": "rope_original original_max_position_embeddings original_context",
        "model.attention_bias": "attention_bias attn_bias qkv_bias add_qkv_bias include_bias bias use_bias",
        "model.mlp_bias": "mlp_bias add_bias_linear",
        "model.parallel": "parallel parallel_residual use_parallel_residual parallel_block parallel_attn",
        "model.qk_norm": "qk_norm qk_layernorm qk_layer_norm use_qk_norm",
        "model.tied": "tied tie_word_embeddings tie_embeddings tied_embeddings weight_tying",
        "batch": "batch batch_size global_batch_size train_batch_size batch_tokens",
        "micro_batch": "micro_batch micro_batch_size per_device_train_batch_size device_batch_size",
        "tokens": "tokens steps max_steps num_steps train_steps max_iters num_train_steps total_tokens max_tokens",
        "seed": "seed random_seed",
        "precision": "precision dtype mixed_precision",
        "eval_every": "eval_every eval_steps eval_interval",
        "checkpoint_every": "checkpoint_every save_steps save_interval save_every",
        "workers": "workers num_workers world_size num_gpus n_gpus",
    }.items()
    for word in words.split()
}
#: What a number under the other word must be multiplied by.
UNITS = {
    "batch": "in tokens: windows x context",
    "micro_batch": "in tokens: windows x context",
    "tokens": "of the whole run: steps x batch",
    "schedule.warmup_tokens": "steps x batch",
    "model.head_dim": "width / heads",
}


LONGEST = 200  # characters of a wrong value in an error


class ConfigError(ValueError):
    """A value that a user can correct: one or two lines with the rule, the value and the remedy."""


def printable(text: str) -> str:
    """A text of somebody else's without what is no character to be seen: it would colour or rename a terminal."""
    return "".join(mark if mark.isprintable() else "\N{REPLACEMENT CHARACTER}" for mark in text)


def without_secrets(text: str) -> str:
    """A text without the names and passwords of the URLs in it, nor those that a URL's query gives."""
    text = re.sub(r"//[^\s'\"]*@", "//***@", text)
    return re.sub(r"(?i)\b(password|passwd|pwd|token|secret|api_?key)=[^&\s'\"]+", r"\1=***", text)


def listing(words: Iterable[str]) -> str:
    """Words to choose from: "a, b or c"."""
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last


def did_you_mean(word: object, names: Collection[str]) -> str:
    """A question after the nearest of these names, in brackets; empty where none is near."""
    near = difflib.get_close_matches(word.lower(), names, n=1) if isinstance(word, str) else ()
    return f" (did you mean {near[0]!r}?)" if near else ""


def one_of(value: object, names: Collection[str]) -> object:
    """A field's value, if it is one of these names; else the error of a Literal (which cannot be given new names)."""
    if value not in tuple(names):
        expected = f"{listing(map(repr, names))}{did_you_mean(value, names)}"
        raise PydanticKnownError("literal_error", {"expected": expected})
    return value


def _shown(value: Any) -> str:
    """A value as Python writes it, cut where nobody would read on."""
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


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
            lines.append(f"unknown key `{key}`; {hint(path, names)}")
        elif item["type"] == "missing":
            lines.append(f"`{key}` is required and missing; add it")
        else:
            rule = re.sub(r"^\w+ should ", "must ", item["msg"])
            remedy = _remedy(item["type"], item.get("ctx", {}), item["input"])
            lines.append(f"`{key}` {rule}, but got {_shown(item['input'])}{f'; {remedy}' if remedy else ''}")
    return "; ".join(dict.fromkeys(lines))


def _remedy(kind: str, ctx: Mapping[str, Any], value: object) -> str:
    """What to write in place of a value that breaks a rule of pydantic's; empty where the rule lists what may be."""
    match kind, ctx:
        case "greater_than", {"gt": bound}:
            return f"use {bound + 1} or more" if isinstance(bound, int) else f"use a number above {bound:g}"
        case "greater_than_equal", {"ge": bound}:
            return f"use {bound:g} or more"
        case "less_than", {"lt": bound}:
            return f"use {bound - 1} or less" if isinstance(bound, int) else f"use a number below {bound:g}"
        case "less_than_equal", {"le": bound}:
            return f"use {bound:g} or less"
        case "literal_error", {"expected": str(expected)}:
            near = did_you_mean(value, re.findall("'(.*?)'", expected))
            return "" if "did you mean" in expected else near.strip(" ()")
        case "bool_type", _:
            return "write true or false"
        case "int_type", _:
            return f"write {_meant(value):.0f}" if _meant(value).is_integer() else "write a whole number"
        case "float_type", _:
            return "write a number" if math.isnan(_meant(value)) else f"write {value}"
        case "string_type", _:
            return "write it in quotes"
    return "correct it"


def _meant(value: object) -> float:
    """The number that a text or a fraction stands for; NaN where it is none."""
    try:
        return float(value) if isinstance(value, str | float) else math.nan
    except ValueError:
        return math.nan


def hint(path: list[str], names: list[str]) -> str:
    """The key that was meant: by the letters if they nearly agree, by the meaning, then by the letters again."""
    *tables, word = path
    typo = difflib.get_close_matches(word, names, n=1, cutoff=0.85)
    meant = "" if typo else SYNONYMS.get(word.lower().replace("-", "_"), "")
    if meant:
        return f"did you mean `{meant}`{f' ({UNITS[meant]})' if meant in UNITS else ''}?"
    near = typo or difflib.get_close_matches(word, names, n=1, cutoff=0.4)
    return f"did you mean `{'.'.join([*tables, near[0]])}`?" if near else f"known: {', '.join(names)}"


class Section(BaseModel):
    """A frozen table of settings; unknown keys and wrong types are a ConfigError that names the key."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
    section: ClassVar[str] = ""
    #: Keys that came after 0.1: at their defaults they are in no stored run and no fingerprint, so old ones stay valid.
    LATER: ClassVar[tuple[str, ...]] = ()

    def __init__(self, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            known = {self.section: list(type(self).model_fields)}
            raise ConfigError(_explain(error, self.section, known)) from None

    def unlike(self, *keys: str) -> list[str]:
        """Those of these keys that are not at their defaults."""
        fields = type(self).model_fields
        return [key for key in keys if getattr(self, key) != fields[key].default]


def inner(place: Any, name: str, key: str) -> Any:
    """The table of this name in another, where it is made if need be, or among tables; `key` is the whole path."""
    if isinstance(place, dict):
        found = place.setdefault(name, {})
        if not isinstance(found, dict | list):
            raise ConfigError(f"`{key}` must lead into a table, but {name!r} is none; correct the key")
        return found
    tables = {table["name"]: table for table in place if isinstance(table, dict) and "name" in table}
    if name not in tables:
        raise ConfigError(
            f"`{key}` must lead to a table that there is, but {name!r} is none{did_you_mean(name, tables)}; known: "
            f"{', '.join(tables) or 'none'}"
        )
    return tables[name]


def flat(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one with dotted keys; of a list of tables each by its name, or its place."""
    found: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            value = {str(table.get("name", place)): table for place, table in enumerate(value, 1)}
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


def shown(value: object) -> str:
    """A value in a line of text: of a long string its beginning."""
    return f"{value[:12]}…" if isinstance(value, str) and len(value) > 40 else f"{value}"


def drop_later(table: Section, content: dict[str, Any]) -> None:
    """Take the later keys that are at their defaults out of a table's content, and out of its sections'."""
    for key in table.LATER:
        if getattr(table, key) == type(table).model_fields[key].get_default(call_default_factory=True):
            content.pop(key, None)
    for key, value in table:
        if isinstance(value, Section) and key in content:
            drop_later(value, content[key])
        elif isinstance(value, tuple) and key in content:
            for each, written in zip(value, content[key], strict=True):
                if isinstance(each, Section):
                    drop_later(each, written)
