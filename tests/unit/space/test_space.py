"""Search spaces: what they accept, what they refuse and in which words."""

import pytest

from froude.config import ConfigError, Run, Schedule
from froude.space import WARMUP, Choice, Grid, LogUniform, Search, Space, Trial, Uniform, load_space

RUN = Run(name="a", tokens=768 * 10)
AXES = {"optimizer.lr": LogUniform(1e-4, 1e-1), "batch": Choice((384, 768)), WARMUP: Uniform(0.0, 0.5)}
DEFAULT = {"optimizer.lr": 1e-2, "batch": 768, WARMUP: 0.1}


def search(**changes):
    given = {"name": "s", "base": RUN, "axes": AXES, "trials": 4, "startup": 2, "default": DEFAULT}
    return Search(**given | changes)


def branches(*steps, **changes):
    return tuple(RUN.replace({"name": f"n{n}", "tokens": 768 * n, **changes}) for n in steps)


@pytest.mark.parametrize(
    "axis, inside, outside",
    [
        (LogUniform(1e-4, 1e-1), 1e-4, 2e-1),
        (Uniform(-1.0, 1.0), 0, "0"),
        (Choice(("cosine", "wsd")), "wsd", "linear"),
    ],
)
def test_an_axis_knows_its_values(axis, inside, outside):
    assert inside in axis
    assert outside not in axis


@pytest.mark.parametrize(
    "make, rule",
    [
        (lambda: LogUniform(0.0, 1.0), "0 < low < high"),
        (lambda: LogUniform(1.0, 0.5), "0 < low < high"),
        (lambda: Uniform(1.0, 1.0), "low < high"),
        (lambda: Uniform(float("nan"), 1.0), "low < high"),
        (lambda: Choice(()), "different options"),
        (lambda: Choice((1, 1)), "different options"),
        (lambda: Choice(({"embedding": 1.0}, {"embedding": 2.0})), "an axis for each key"),
    ],
)
def test_an_axis_without_values_is_refused(make, rule):
    with pytest.raises(ConfigError, match=rule):
        make()


def test_a_search_places_its_axes_in_the_run():
    trial = search().trial(3, {"optimizer.lr": 1e-3, "batch": 384, WARMUP: 0.25})
    (run,) = trial.runs
    assert (trial.name, run.name, run.stage) == ("s-03", "s-03", "s")
    assert (run.optimizer.lr, run.batch, run.tokens, run.schedule.warmup_tokens) == (1e-3, 384, 7680, 1920)


def test_a_search_keeps_whole_steps_for_any_batch():
    odd = search(
        base=RUN.replace(tokens=7680), axes={"batch": Choice((768, 1536, 3072))}, default={"batch": 768}
    )
    assert [odd.trial(0, {"batch": b}).runs[0].tokens for b in (768, 1536, 3072)] == [7680, 7680, 3072 * 2]


@pytest.mark.parametrize(
    "changes, rule",
    [
        ({"trials": 0}, "trials >= 1"),
        ({"startup": 5}, "startup <= trials"),
        ({"parallel": 0}, "parallel >= 1"),
        ({"default": {"batch": 768}}, "must name each axis.*optimizer.lr"),
        (
            {
                "axes": AXES | {"optimizer.beta2": Uniform(0.9, 1.2)},
                "default": DEFAULT | {"optimizer.beta2": 0.9},
            },
            "beta2",
        ),
        ({"axes": AXES | {"batch": Choice((768, 800))}, "default": DEFAULT | {"batch": 768}}, "batch"),
        ({"default": DEFAULT | {"optimizer.lr": 1.0}}, "'optimizer.lr' must lie on it, but got 1.0"),
        (
            {"axes": AXES | {"optimizer.lrr": Uniform(0, 1)}, "default": DEFAULT | {"optimizer.lrr": 0.5}},
            "optimizer.lr`",
        ),
        (
            {"axes": AXES | {"batch": Choice((100, 768))}, "default": DEFAULT | {"batch": 100}},
            "multiple of slots",
        ),
        ({"name": "a b"}, "must have a name"),
        (
            {"axes": {"batch": LogUniform(384, 1536)}, "default": {"batch": 768}},
            r"'s' does not at batch = \d+\.\d+: `batch` must be a valid integer.* give whole numbers as a Choice",
        ),
        (
            {
                "axes": {
                    "optimizer.name": Choice(("adamw", "lion")),
                    "optimizer.eps": LogUniform(1e-9, 1e-7),
                },
                "default": {"optimizer.name": "adamw", "optimizer.eps": 1e-8},
            },
            r"'s' does not at optimizer.name = lion.*`optimizer.eps` must be left out with lion",
        ),
        *(
            (
                {"axes": {key: Choice((value,))}, "default": {key: value}},
                f"'s' has {key}, which it sets itself",
            )
            for key, value in (("tokens", 1536), ("name", "b"), ("stage", "b"), ("stability", "ladder"))
        ),
        (
            {
                "axes": AXES | {"schedule.warmup_tokens": Choice((0, 768))},
                "default": DEFAULT | {"schedule.warmup_tokens": 0},
            },
            "'s' has schedule.warmup_tokens, which it sets itself",
        ),
    ],
)
def test_a_search_that_makes_no_runs_is_refused(changes, rule):
    with pytest.raises(ConfigError, match=rule):
        search(**changes)


def test_a_trial_survives_json():
    trial = Trial("t", branches(4, 8), stop_loss=2.5, params={"batch": 768})
    assert Trial.from_json(trial.to_json()) == trial


def test_branches_share_their_trunk():
    """Horizons of 10 and 20 steps with tails of 20%: 8 + 2 steps, then from 8 to 16, then 4: 22 in all."""
    trial = Trial("t", branches(10, 20))
    assert trial.steps == 16 + 2 + 4
    assert trial.tokens == 22 * 768


@pytest.mark.parametrize(
    "runs, rule",
    [
        ((), "must have a run"),
        (branches(8, 4), "sorted by tokens"),
        ((RUN, RUN), "different names"),
        (
            branches(4, 8, **{"schedule.name": "cosine"}),
            r"a schedule with a trunk \(wsd\), but those of 't' have cosine",
        ),
        (
            (*branches(4), *branches(8, **{"optimizer.lr": 1e-3})),
            "runs that differ in name and tokens only",
        ),
        (branches(4, 8, workers=2, slots=12), "one-worker"),
    ],
)
def test_branches_that_are_none_are_refused(runs, rule):
    with pytest.raises(ConfigError, match=rule):
        Trial("t", runs)


def grid(name="g", trials=lambda rows: [Trial("t", (RUN,))], **changes):
    return Grid(name, trials, role="loss_law", **changes)


@pytest.mark.parametrize("goal", ["2.5", True, float("nan")])
def test_a_goal_that_is_no_loss_is_refused(goal):
    with pytest.raises(ConfigError, match="`stop_loss` must be a finite number"):
        Trial("t", (RUN,), goal)


def test_a_grid_names_the_stage_of_its_runs_and_keeps_their_names():
    space = Space("x", 0, (grid(),), RUN)
    (trial,) = space.planned()["g"]
    assert (trial.runs[0].stage, trial.runs[0].name) == ("g", "a")
    assert trial.runs[0].fingerprint == RUN.as_proxy().fingerprint


def test_a_stage_table_has_roles_and_the_target_loss():
    trials = [Trial("t", branches(4, 8), stop_loss=2.2)]
    space = Space("x", 0, (search(), Grid("g", lambda rows: trials, role="critical_batch")), RUN)
    assert space.stage_table() == {
        "s": {"role": "search", "trials": 4, "extends": False},
        "g": {"role": "critical_batch", "trials": 1, "extends": False, "target_loss": 2.2},
    }
    assert space.before(space.stages[1]) == ("s",)


@pytest.mark.parametrize(
    "stages, rule",
    [
        ((), "must have a stage"),
        ((grid(), grid()), "'g' comes twice"),
        ((grid(after=("h",)),), "must name stages before it, but got h"),
        ((grid(trials=lambda rows: ["no"]),), "list of Trial"),
        ((grid(trials=lambda rows: None),), "stage 'g' must lay out a list of Trial, but .* returned None"),
        (
            (grid(trials=lambda rows: (Trial(str(row), (RUN,)) for row in [rows["loss"][0]])),),
            r"stage 'g' must not raise, but got IndexError.*test_space.py:\d+",
        ),
        (
            (grid(trials=lambda rows: 1 / 0),),
            r"stage 'g' must not raise, but got ZeroDivisionError.*test_space.py:\d+",
        ),
        ((grid(trials=lambda rows: [Trial("t", (RUN,)), Trial("t", (RUN,))]),), "'t' comes more than once"),
        ((grid(), grid("h", lambda rows: [Trial("u", (RUN,))])), "runs must have different names, but 'a'"),
    ],
)
def test_a_space_that_makes_no_study_is_refused(stages, rule):
    with pytest.raises(ConfigError, match=rule):
        Space("x", 0, stages, RUN).planned()


def test_a_stage_is_laid_out_once_and_its_plan_is_nobodys_to_change():
    calls = []

    def layout(rows):
        calls.append(rows)
        return [Trial("t", (RUN,))]

    space = Space("tiny", 0, (Grid("g", layout, "loss_law"),), RUN.replace({}, name="large"))
    space.planned()["g"].clear()
    assert [trial.name for trial in space.planned()["g"]] == ["t"]
    assert len(calls) == 1


def test_a_target_does_not_share_its_name_with_another_run():
    Space("x", 0, (grid(),), RUN).check_new()  # the same run: nothing to confuse
    longer = RUN.replace(tokens=RUN.tokens * 2, name="a")
    with pytest.raises(ConfigError, match="a proxy of 'x' is called 'a', too; name one of them"):
        Space("x", 0, (grid(),), longer).check_new()
    Space("x", 0, (grid(),), longer).planned()  # as a study may be that was begun before
    wide = RUN.replace(slots=12, workers=2, name="a")
    with pytest.raises(ConfigError, match="is called 'a'"):
        Space("x", 0, (grid(trials=lambda rows: [Trial("t", (wide,))]),), wide).check_new()


def test_an_unknown_role_is_refused():
    with pytest.raises(ConfigError, match="role must be one of"):
        Grid("g", lambda rows: [], role="lawless")
    with pytest.raises(ConfigError, match=r"role must be one of search, .* but 's' has 'sweep'"):
        search(role="sweep")


FILE = """
from froude.config import Run
from froude.space import Grid, Space, Trial
def space(seed: int = 0):
    run = Run(name="only", tokens=7680, seed=seed)
    return Space("mine", seed, (Grid("g", lambda rows: [Trial("only", (run,))], role="loss_law"),), run)
"""


def test_a_file_is_loaded_with_its_seed(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(FILE)
    assert load_space(file, seed=5).target.seed == 5
    assert load_space(file).seed == 0


@pytest.mark.parametrize(
    "content, rule",
    [
        ("x = 1", r"must define space\(\)"),
        ("def space():\n    return 3", "returned int"),
        (
            "def space():\n    raise KeyError('lr')",
            r"must not raise, but got KeyError: 'lr' \(at .*/mine\.py:2\)",
        ),
        ("import nowhere_at_all", "ModuleNotFoundError"),
        ("def space(:", "SyntaxError"),
        (
            "def space():\n    from froude.config import Run\n    return Run(tokens=100)",
            "multiple of `batch`",
        ),
    ],
)
def test_a_file_that_defines_no_space_is_refused(tmp_path, content, rule):
    file = tmp_path / "mine.py"
    file.write_text(content)
    with pytest.raises(ConfigError, match=rule) as caught:
        load_space(file)
    assert len(str(caught.value).splitlines()) <= 2


def test_a_file_that_is_not_there_or_takes_no_seed_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="there is none at"):
        load_space(tmp_path / "none.py")
    file = tmp_path / "mine.py"
    file.write_text(
        FILE.replace("seed: int = 0", "").replace("seed=seed", "seed=0").replace('"mine", seed', '"mine", 0')
    )
    load_space(file)
    with pytest.raises(ConfigError, match="takes one"):
        load_space(file, seed=1)


def test_schedules_without_a_trunk_still_make_single_trials():
    Trial("t", (RUN.replace(schedule=Schedule(name="cosine").model_dump()),))


def in_precisions(name, precisions, role="loss_law"):
    runs = [RUN.replace(precision=each, name=f"{name}-{each}") for each in precisions]
    return Grid(name, lambda rows: [Trial(run.name, (run,)) for run in runs], role=role)


def test_proxies_have_one_precision_but_where_another_is_measured():
    both = ("fp32", "bf16")
    with pytest.raises(
        ConfigError,
        match=r"`precision` must be the same in all proxies, but got \"fp32\" \(law-fp32 of stage 'law'\) and "
        r"\"bf16\" \(law-bf16 of stage 'law'\); choose one, and measure",
    ):
        Space("mixed", 0, (in_precisions("law", both),), RUN).planned()
    with pytest.raises(ConfigError, match=r"a-fp32 of stage 'a'\) and \"bf16\" \(b-bf16 of stage 'b'"):
        Space(
            "apart", 0, (in_precisions("a", both[:1]), in_precisions("b", both[1:], role="search")), RUN
        ).planned()
    Space(
        "measured", 0, (in_precisions("law", both[:1]), in_precisions("cost", both, role="precision")), RUN
    ).planned()
    with pytest.raises(ConfigError, match="all proxies, but it is an axis of 's'; set it in `base`"):
        search(axes={"precision": Choice(both)}, default={"precision": "fp32"})
