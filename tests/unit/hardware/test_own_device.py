"""Runs that say where they train: the guide's file, and runs with a device of their own."""

import pytest

from froude.cli import main
from froude.config import ConfigError, Run
from froude.hardware import tables
from froude.hardware.sizes import Place
from froude.hardware.ways import plan
from froude.sweep.sizes import sizes_of


def planned(run, device):
    return plan(run, sizes_of(run), Place(1, 1), tables.device(device), tables.price(device))


def test_the_guides_run_is_one_that_can_be_planned(root, tmp_path, capsys):
    file = tmp_path / "run.toml"
    guide = (root / "docs/guide/memory.md").read_text()
    file.write_text(guide.split("```toml\n")[1].split("```")[0])
    code = main(["plan", str(file), "--device", "h100-80gb", "--nodes", "4x8"])
    out = capsys.readouterr().out
    assert (code, "cheapest that fits" in out, "set `" in out) == (0, True, False)


@pytest.mark.parametrize(("own", "other"), [("cuda", "cpu"), ("cpu", "h100-80gb")])
def test_a_run_is_planned_for_the_device_that_it_names(own, other):
    run = Run(tokens=7680, device=own)
    with pytest.raises(ConfigError, match=f'in a plan for {other}, but got "{own}"; set it, or plan for '):
        planned(run, other)
    assert planned(run, "cpu" if own == "cpu" else "h100-80gb").chosen
