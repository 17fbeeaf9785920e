"""The contract with what torch does not promise: where this fails, exact runs on several workers need other code."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement
from packaging.version import Version
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter

from froude.config import ConfigError
from froude.train.exact import torch_internals


def test_fsdp_takes_a_reduce_scatter_of_ours() -> None:
    assert list(inspect.signature(ReduceScatter.allocate).parameters) == ["self", "size", "dtype", "device"]
    call = list(inspect.signature(ReduceScatter.__call__).parameters)
    assert call == ["self", "output_tensor", "input_tensor", "group", "op", "async_op"]
    for name in (
        "set_custom_reduce_scatter",
        "set_gradient_divide_factor",
        "set_reduce_scatter_unused_params",
    ):
        assert callable(getattr(FSDPModule, name))


def test_an_untested_torch_is_refused_with_a_way_out() -> None:
    torch_internals.check_torch(torch.__version__)
    torch_internals.check_torch("2.13.1+cu130")
    for version in ("2.14.0", "3.0.0a0+git1"):
        with pytest.raises(ConfigError, match=r'below 2\.14.* but this is .*reduction = "fast"'):
            torch_internals.check_torch(version)


def test_the_bound_is_that_of_the_installation(root: Path) -> None:
    import tomllib

    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    (needed,) = (r for r in map(Requirement, project["dependencies"]) if r.name == "torch")
    bound = ".".join(map(str, torch_internals.UNTESTED_TORCH))
    assert f"<{bound}" in str(needed.specifier)
    assert needed.specifier.contains(Version(torch.__version__).base_version)
