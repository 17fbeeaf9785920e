"""A config.json of transformers, read without the network and scaled to the sizes of a run."""

from __future__ import annotations

import copy
import hashlib
import importlib
import json
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from froude.config import ConfigError, Run
from froude.material.moved import lies_at
from froude.sections import ARCHITECTURE
from froude.sections import Model as Shape
from froude.train.api import multiplier
from froude.train.hf.layouts import Layout, layout_of
from froude.user_code import call_user

#: Keys of configs on the hub that say nothing of what is computed, or that transformers itself translates.
SILENT = frozenset(
    {
        "_name_or_path",
        "architectures",
        "auto_map",
        "transformers_version",
        "torch_dtype",
        "dtype",
        "model_type",
    }
    | {"rope_theta", "rope_scaling", "partial_rotary_factor", "head_dim", "initializer_range", "use_cache"}
    | {"n_ctx", "task_specific_params", "_attn_implementation", "attn_implementation", "pretraining_tp"}
)
#: Settings under which an architecture computes something that the adapter does not know, and their values if it does.
PLAIN: dict[str, tuple[object, ...]] = {
    "use_sliding_window": (False, None),
    "scale_attn_by_inverse_layer_idx": (False,),
    "scale_attn_weights": (True,),
    "add_cross_attention": (False,),
    "partial_rotary_factor": (1.0, None),
}
FIXED_ROPE = ("default", "linear", "llama3", "yarn")
MULTIPLIERS = ("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling")
#: What a config is called among a run's material.
CONTENT = "the model's config"
TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")


def transformers() -> Any:
    """The library; ConfigError where it is not installed."""
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        raise ConfigError(
            f"models of Hugging Face need the package transformers, but importing it gave: {error}; "
            "pip install -e '.[hf]' in froude's checkout"
        ) from None


def file_of(run: Run) -> Path:
    """The config.json that the run names."""
    given = run.model.options.get("config", "")
    if not given or not isinstance(given, str):
        raise ConfigError(
            f"`model.options.config` must name a config.json, or a folder with one, but got {given!r}; "
            "name a local path: nothing is fetched"
        )
    path = Path(lies_at(given, _planned(run)))
    return path / "config.json" if path.is_dir() else path


def _planned(run: Run) -> str:
    return str(run.model.options.get("config_sha256", ""))


def content_of(file: Path) -> tuple[dict[str, Any], str]:
    """A config file's content and its SHA-256."""
    try:
        raw = file.read_bytes()
        content = json.loads(raw)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"`model.options.config` must be a readable JSON file, but {file}: {error}; name a local config.json"
        ) from None
    if not isinstance(content, dict):
        raise ConfigError(
            f"a config.json must be an object, but {file} is a {type(content).__name__}; correct it"
        )
    return content, hashlib.sha256(raw).hexdigest()


def unchanged(run: Run, recorded: Mapping[str, str]) -> None:
    """ConfigError unless the config is the one whose SHA-256 a run recorded; any is taken where it recorded none.

    Weights do not show another activation, epsilon or theta: they fit both configs.
    """
    file, before = file_of(run), recorded.get(CONTENT, "")
    _, now = content_of(file)
    if before and now != before:
        raise ConfigError(
            f"the model's config must be the one that {run.name} was trained with, sha256 {before[:12]}…, "
            f"but {file} is {now[:12]}…; restore it"
        )


def read(file: Path) -> Any:
    """The config as transformers has it; ConfigError for what the adapter does not know."""
    content, _ = content_of(file)
    layout_of(content.get("model_type"))
    kind = transformers().CONFIG_MAPPING[content["model_type"]]
    if odd := sorted(set(content) - set(kind().to_dict()) - set(kind.attribute_map) - SILENT):
        raise ConfigError(
            f"each key of a config must be one that {kind.__name__} has, but {file} has {', '.join(odd[:4])}; "
            "correct it, or take it out"
        )
    found = call_user(f"{kind.__name__} of {file}", kind.from_dict, content, remedy="correct the config")
    _refuse(found, str(file))
    return found


def _refuse(config: Any, where: str) -> None:
    rope = getattr(config, "rope_parameters", None) or {}
    for key, allowed in PLAIN.items():
        value = getattr(config, key, rope.get(key, allowed[0]))
        if value not in allowed:
            raise ConfigError(
                f"`{key}` of a config must be {json.dumps(allowed[0])}, since the adapter does not know what else it "
                f"does, but {where} has {value!r}; set it so"
            )
    if others := sorted(set(getattr(config, "layer_types", None) or ()) - {"full_attention"}):
        raise ConfigError(
            f"every layer of a config must have full attention, but {where} has {', '.join(others)}; drop "
            "`layer_types`"
        )
    if config.model_type == "mistral" and config.sliding_window:
        raise ConfigError(
            f"`sliding_window` of a config must be null, but {where} has {config.sliding_window}; set it so"
        )
    kind = rope.get("rope_type", "default")
    if kind not in FIXED_ROPE:
        raise ConfigError(
            f"`rope_type` of a config must be one of {', '.join(FIXED_ROPE)}, which do not change with a sequence's "
            f"length, but {where} has {kind!r}; choose one"
        )


def scaled(run: Run) -> Any:
    """The run's config: sizes are the run's, all else is the file's; ConfigError where they do not fit.

    The feed-forward width, the width of all heads together and the number of key heads keep their ratios.
    """
    file, shape = file_of(run), run.model
    source, planned = read(file), _planned(run)
    if planned and (found := content_of(file)[1]) != planned:
        raise ConfigError(
            f"`model.options.config` must be the one that the run was planned with, SHA-256 {planned[:12]}…, but "
            f"{file} has {found[:12]}…; restore it, or correct `model.options.config_sha256`"
        )
    layout = layout_of(source.model_type)
    _agrees(shape, source)
    config = copy.deepcopy(source)
    wide = Fraction(_heads_width(source), source.hidden_size) * shape.width
    heads = _whole(wide / shape.head_dim, shape, "heads")
    if not layout.head_dim and heads * shape.head_dim != shape.width:
        raise ConfigError(
            f"heads of a {source.model_type} must be as wide as the model, but {file} has {heads} heads of "
            f"{shape.head_dim} at width {shape.width}; correct `model.head_dim`"
        )
    keys = getattr(source, "num_key_value_heads", None) or source.num_attention_heads
    keys = max(1, round(Fraction(keys, source.num_attention_heads) * heads))
    if heads % keys:
        raise ConfigError(
            f"key heads must divide the {heads} heads of width {shape.width}, but the ratio of {file} gives {keys}; "
            "choose another `model.width` or `model.head_dim`"
        )
    settings: dict[str, Any] = {
        "hidden_size": shape.width,
        "num_hidden_layers": shape.depth,
        "num_attention_heads": heads,
        "vocab_size": shape.vocab,
        "max_position_embeddings": _positions(run, source, layout),
        "use_cache": False,
    }
    if layout.head_dim:
        settings["head_dim"] = shape.head_dim
    if hasattr(source, "num_key_value_heads"):
        settings["num_key_value_heads"] = keys
    inner = "n_inner" if source.model_type == "gpt2" else "intermediate_size"
    if (value := getattr(source, inner)) is not None:
        settings[inner] = round(Fraction(value, source.hidden_size) * shape.width)
    if hasattr(source, "layer_types"):
        settings["layer_types"] = ["full_attention"] * shape.depth
    settings |= {key: 0.0 for key, value in source.to_dict().items() if is_dropout(key, value)}
    settings |= {key: None for key in TOKENS if not _is_token(getattr(source, key, None), shape.vocab)}
    for key, value in settings.items():
        setattr(config, key, value)
    what = f"{type(config).__name__} of {file} at width {shape.width}"
    config = call_user(what, type(config).from_dict, config.to_dict(), remedy="correct the run's sizes")
    config.use_cache = False
    return config


def multiply(config: Any, run: Run) -> None:
    """Put the run's multipliers into a config of Granite; its own stay as constant factors, but for attention's."""
    config.attention_multiplier = multiplier(run, "attention")
    config.residual_multiplier *= multiplier(run, "residual")
    config.logits_scaling /= multiplier(run, "logits")


def is_dropout(key: str, value: object) -> bool:
    """Whether a key of a config is a probability of dropout, and not zero."""
    return ("dropout" in key or key.endswith("pdrop")) and isinstance(value, int | float) and bool(value)


def _agrees(shape: Shape, source: Any) -> None:
    """ConfigError where the run asks for another architecture than the config has."""
    if own := shape.unlike("softcap", "qk_norm", *ARCHITECTURE):
        raise ConfigError(
            f"`model.{own[0]}` is for the package's own model, but the run sets it; the config decides, and that of "
            f"{source.model_type} is what it is: take it out"
        )
    if shape.tied != bool(source.tie_word_embeddings):
        tied = str(bool(source.tie_word_embeddings)).lower()
        raise ConfigError(
            f"`model.tied` must be what `tie_word_embeddings` of the config is, {tied}, but got "
            f"{str(shape.tied).lower()}; change either"
        )


def _heads_width(source: Any) -> int:
    heads = source.num_attention_heads
    return int(heads * (getattr(source, "head_dim", None) or source.hidden_size // heads))


def _whole(value: Fraction, shape: Shape, what: str) -> int:
    if value.denominator != 1 or value < 1:
        raise ConfigError(
            f"the number of {what} must be whole, but is {float(value):g} at width {shape.width} and head_dim "
            f"{shape.head_dim}; choose a width that is a multiple of `model.head_dim`"
        )
    return int(value)


def _positions(run: Run, source: Any, layout: Layout) -> int:
    """Learned positions are parameters: as many as are used, unless they come from a checkpoint."""
    if layout.learned_positions and "init" not in run.model.options:
        return run.model.context
    return max(run.model.context, int(source.max_position_embeddings))


def _is_token(value: object, vocab: int) -> bool:
    values = value if isinstance(value, list) else [value]
    return all(isinstance(each, int) and each < vocab for each in values)
