"""The published recipes have the published sizes, are planned at them, and train when they are small."""

import importlib.util
import math
import sys

import pytest

from froude.config import Model
from froude.hardware import tables
from froude.hardware.sizes import Place
from froude.hardware.ways import plan
from froude.space import load_space
from froude.sweep.sizes import sizes_of
from froude.train.trainer import Trainer

#: Heads of keys and values of those that group queries, where this version's model can't.
GROUPED = {} if "kv_heads" in Model.model_fields else {"llama2-70b": 8, "mistral-7b": 8, "deepseek-67b": 8}


@pytest.fixture(scope="module")
def recipes(root):
    spec = importlib.util.spec_from_file_location("published", root / "search_spaces/published_recipes.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["published"] = module
    spec.loader.exec_module(module)
    return module


NAMES = (
    "gpt3",
    "chinchilla",
    "llama2_7b",
    "llama2_70b",
    "mistral_7b",
    "deepseek_7b",
    "deepseek_67b",
    "olmo2_7b",
)


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_has_the_published_size_and_is_planned(recipes, name):
    function = getattr(recipes, name)
    run, published = function(), recipes.RECIPES[function]
    sizes, shape = sizes_of(run), run.model
    if run.name in GROUPED:
        published += 2 * shape.depth * shape.width * (shape.width - GROUPED[run.name] * shape.head_dim)
    assert sizes.parameters == pytest.approx(published, rel=0.02)
    flops = sizes.flops_per_token * run.tokens
    assert 1 < flops / (6 * sizes.parameters * run.tokens) < 1.5
    device = tables.device("b200")
    found = plan(run, sizes, Place(32, 8), device, tables.price("b200"))
    way = min(found.ways, key=lambda each: each.memory.needed)
    assert all(math.isfinite(item.bytes) for item in way.memory.items.values())
    assert 0 < found.days(way) < 10_000


def test_each_says_what_it_leaves_out(recipes):
    assert all("Left out: " in function.__doc__ for function in recipes.RECIPES)
    assert "batch ramp" in recipes.gpt3.__doc__
    assert "260 of 300" in recipes.gpt3.__doc__


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_small_one_trains(recipes, name):
    run = recipes.small(getattr(recipes, name)())
    trainer = Trainer(run.replace(eval_windows=8))
    losses = [trainer.step(run, step).loss for step in range(3)]
    assert all(math.isfinite(loss) for loss in losses)
    assert run.schedule.name == getattr(recipes, name)().schedule.name


def test_the_space_has_all_small_ones(recipes, root):
    space = load_space(root / "search_spaces/published_recipes.py", seed=3)
    (trials,) = space.planned().values()
    assert len(trials) == len(recipes.RECIPES) == len(NAMES)
    assert {trial.runs[0].seed for trial in trials} == {3}
