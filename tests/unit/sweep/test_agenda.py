"""The order of a sweep's work: what is next, what is resumed, what each stage makes of the one before."""

import math

import polars as pl
import pytest
from played_sweep import outcome, play

from froude.config import ConfigError, Run
from froude.space import Choice, Grid, LogUniform, Search, Space, Trial
from froude.sweep.agenda import Agenda, cost

BASE = Run(tokens=768 * 10)


def search(trials=6, startup=2, parallel=2):
    axes = {"optimizer.lr": LogUniform(1e-4, 1e-1), "batch": Choice((384, 768))}
    return Search("s", BASE, axes, trials, startup, {"optimizer.lr": 1e-2, "batch": 768}, parallel)


def trials(*rates):
    return [Trial(f"g-{lr:g}", (BASE.replace({"optimizer.lr": lr}, name=f"g-{lr:g}"),)) for lr in rates]


def parabola(run):
    return 2.0 + (math.log2(run.optimizer.lr) + 8) ** 2 / 50


def space(*stages, seed=0):
    return Space("x", seed, stages or (search(),), BASE)


def rates(agenda):
    return [r.optimizer.lr for t in agenda.stages[0].trials for r in t.runs]


@pytest.mark.parametrize("slots, order", [(1, 0), (2, 1), (2, 2), (3, 3)])
def test_a_search_is_the_same_whichever_trial_ends_first(slots, order):
    reference = Agenda(space(), {})
    play(reference, parabola, slots=1)
    other = Agenda(space(), {})
    play(other, parabola, slots=slots, seed=order)
    assert rates(other) == rates(reference)
    assert len(set(rates(other))) == 6


def test_a_search_of_another_seed_goes_elsewhere_and_keeps_its_default():
    found = []
    for seed in (0, 1):
        agenda = Agenda(space(seed=seed), {})
        play(agenda, parabola)
        found.append(rates(agenda))
    assert found[0][0] == found[1][0] == 1e-2
    assert not set(found[0][1:]) & set(found[1][1:])


def test_tpe_looks_where_the_loss_is_low():
    """24 trials after 8 random ones: the later half lies nearer to the optimum than the random ones."""
    agenda = Agenda(space(search(trials=32, startup=8)), {})
    play(agenda, parabola)
    miss = [abs(math.log2(lr) + 8) for lr in rates(agenda)]
    assert sum(miss[-12:]) / 12 < 0.6 * sum(miss[1:9]) / 8


def test_only_so_many_trials_of_a_search_run_ahead():
    agenda = Agenda(space(search(parallel=2)), {})
    names = [agenda.next().name for _ in range(3)]  # the default and the random ones wait for nothing
    assert names == ["s-00", "s-01", "s-02"]
    assert agenda.next() is None
    first = agenda.stages[0].trials
    agenda.finish(outcome(first[0], parabola))
    assert agenda.next() is None
    agenda.finish(outcome(first[1], parabola))
    assert agenda.next().name == "s-03"  # sees 0 and 1, not 2


@pytest.mark.parametrize("bad", [math.nan, -1.0])
def test_a_search_goes_on_after_trials_without_a_loss(bad):
    agenda = Agenda(space(), {})
    play(agenda, lambda run: bad if run.name in ("s-01", "s-02") else parabola(run))
    assert agenda.done
    assert agenda.with_status("diverged" if math.isnan(bad) else "failed") == 2


@pytest.mark.parametrize("after", range(1, 9))
def test_an_interrupted_sweep_goes_on_as_if_it_had_not_been(after):
    stages = (search(), Grid("g", lambda rows: trials(1e-3, rows["lr"].median() or 1e-2), role="loss_law"))
    whole = Agenda(space(*stages), {})
    play(whole, parabola)
    cut = Agenda(space(*stages), {})
    begun = set(play(cut, parabola, stop_after=after))
    again = Agenda(space(*stages), cut.results)
    assert again.resumed == len(cut.results) or not again.stages[0].done
    more = play(again, parabola)
    assert {n: s.rows for n, s in again.results.items()} == {n: s.rows for n, s in whole.results.items()}
    assert not set(more) & set(cut.results)
    assert begun | set(more) == set(whole.results)


def test_a_complete_study_leaves_nothing_to_do():
    first = Agenda(space(), {})
    play(first, parabola)
    again = Agenda(space(), first.results)
    assert again.done
    assert again.next() is None
    assert again.left() == []
    assert again.counts() == {"s": (6, 6)}


def test_a_failed_trial_is_tried_again_by_the_next_sweep():
    first = Agenda(space(), {})
    play(first, lambda run: -1.0 if run.name == "s-05" else parabola(run))
    assert first.done
    again = Agenda(space(), first.results)
    assert [trial.name for _, trial in again.left()] == ["s-05"]
    assert play(again, parabola) == ["s-05"]


def following(best):
    """Rates, and a trial of one name at the best of them."""

    def law(rows):
        done = rows.filter(pl.col("status") == "finished").sort("loss")
        lr = done["lr"][0] if done.height else 1e-2
        return [Trial("law", (BASE.replace({"optimizer.lr": lr}, name="law"),))]

    return space(
        Grid("g", lambda rows: trials(1e-3, best), role="lr_transfer"), Grid("law", law, role="loss_law")
    )


def failing(run):
    return -1.0 if run.name == "g-0.004" else parabola(run)


def test_what_was_laid_out_without_a_failed_trial_stays_when_that_finishes_later():
    first = Agenda(following(best=4e-3), {})
    play(first, failing)
    (law,) = first.stages[1].trials
    assert law.runs[0].optimizer.lr == 1e-3
    without = {name: kept.get("without", []) for name, kept in first.layouts().items()}
    assert without == {"g": [], "law": ["g-0.004"]}
    again = Agenda(following(best=4e-3), first.results, without=without)
    assert play(again, parabola) == ["g-0.004"]
    assert again.done
    assert not again.results["g-0.004"].failed  # for the laws
    third = Agenda(following(best=4e-3), again.results, without=without)
    assert third.done
    assert third.kept() == [
        "stage 'law' stays as it was laid out, without g-0.004, which had failed; under another name, with "
        "other names for its trials, it is laid out anew"
    ]
    unsaid = Agenda(following(best=4e-3), first.results)
    with pytest.raises(ConfigError, match="'law' with other settings"):
        play(unsaid, parabola)


def test_a_stage_of_which_nothing_is_there_is_laid_out_with_all_that_has_finished():
    first = Agenda(following(best=4e-3), {})
    play(first, failing, stop_after=2)
    assert first.layouts()["law"]["without"] == ["g-0.004"]
    again = Agenda(following(best=4e-3), first.results, without={"law": ["g-0.004"]})
    assert play(again, parabola) == ["g-0.004", "law"]
    assert again.stages[1].trials[0].runs[0].optimizer.lr == 4e-3


def test_a_search_and_an_extension_go_on_from_what_they_had_seen():
    def extend(rows):
        done = rows.filter(pl.col("status") == "finished").sort("loss")
        return [Trial("more", (BASE.replace({"optimizer.lr": done["lr"][0] * 2}, name="more"),))]

    made = space(search(trials=8), Grid("g", lambda _: trials(1e-3, 4e-3), "loss_law", extend=extend))

    def loss(run):
        return -1.0 if run.name in ("s-03", "g-0.004") else parabola(run)

    whole, cut = Agenda(made, {}), Agenda(made, {})
    play(whole, loss)
    play(cut, loss, stop_after=6)
    for agenda in (whole, cut):
        without = {name: kept.get("without", []) for name, kept in agenda.layouts().items()}
        again = Agenda(made, agenda.results, without=without)
        play(again, parabola)
        assert again.done
        assert rates(again) == rates(whole)
        assert again.layouts()["g"]["names"] == ["g-0.001", "g-0.004", "more"]


def grid_space(planner, **changes):
    return space(Grid("g", planner, role="loss_law", **changes))


def test_one_name_with_another_configuration_is_refused():
    first = Agenda(grid_space(lambda rows: trials(1e-3)), {})
    play(first, parabola)
    renamed = Trial("g-0.001", trials(2e-3)[0].runs)
    with pytest.raises(ConfigError, match=r"'g-0.001' with other settings .*--fresh"):
        Agenda(grid_space(lambda rows: [renamed]), first.results)


def test_a_trial_stays_in_the_stage_it_was_trained_for():
    """Its rows name that stage, and laws go by them: under a renamed stage they would be counted and never read."""
    first = Agenda(grid_space(lambda rows: trials(1e-3)), {})
    play(first, parabola)
    renamed = space(Grid("g2", lambda rows: trials(1e-3), role="loss_law"))
    with pytest.raises(
        ConfigError, match=r"'g-0.001' with other stage \(g instead of g2, .*names of their own"
    ):
        Agenda(renamed, first.results)
    again = Agenda(renamed, first.results, rerun_changed=True)
    assert play(again, parabola) == ["g-0.001"]
    assert again.rows(["g2"])["stage"].to_list() == ["g2"]


def test_a_search_on_other_axes_is_refused():
    first = Agenda(space(), {})
    play(first, parabola)
    smaller = Search("s", BASE, {"optimizer.lr": LogUniform(1e-4, 1e-1)}, 6, 2, {"optimizer.lr": 1e-2})
    with pytest.raises(ConfigError, match="'s-00' with other axes batch"):
        Agenda(space(smaller), first.results)


def test_a_search_that_was_edited_keeps_only_what_it_could_have_given():
    def on(low, high, default=1e-2):
        axes = {"optimizer.lr": LogUniform(low, high), "batch": Choice((384, 768))}
        return space(Search("s", BASE, axes, 6, 2, {"optimizer.lr": default, "batch": 768}))

    first = Agenda(space(), {})
    play(first, parabola)
    assert Agenda(on(1e-5, 1.0), first.results).done
    with pytest.raises(ConfigError, match=r"'s-00' with other settings \(optimizer.lr 0.01 instead of 2.0\)"):
        Agenda(on(1.0, 4.0, default=2.0), first.results)
    with pytest.raises(ConfigError, match=r"'s-0[1-5]' with other settings .*--rerun-changed"):
        Agenda(on(0.0099, 0.0101), first.results)


def branched(*steps, stop_loss=None):
    runs = tuple(BASE.replace(name=f"b-n{n}", tokens=768 * n) for n in steps)
    return Trial("b", runs, stop_loss=stop_loss)


def test_a_trunk_without_all_its_branches_counts_only_if_it_reached_its_goal():
    def loss(run):
        return 4.0 - run.steps / 10

    first = Agenda(grid_space(lambda rows: [branched(10, 20, 30, stop_loss=2.5)]), {})
    play(first, loss)
    assert first.results["b"].rows["run"].to_pylist() == ["b-n10", "b-n20"]
    assert Agenda(grid_space(lambda rows: [branched(10, 20, 30, stop_loss=2.5)]), first.results).done
    with pytest.raises(ConfigError, match=r"other branches \(2 of 3\)"):
        Agenda(grid_space(lambda rows: [branched(10, 20, 30, stop_loss=1.5)]), first.results)


def test_a_grid_is_extended_once_with_its_own_rows():
    seen = []

    def extend(rows):
        seen.append(rows.height)
        return trials(5e-2)

    agenda = Agenda(grid_space(lambda rows: trials(1e-2, 2e-2), extend=extend), {})
    assert play(agenda, parabola)[-1] == "g-0.05"
    assert seen == [2]
    assert Agenda(grid_space(lambda rows: trials(1e-2, 2e-2), extend=extend), agenda.results).done


def test_stages_that_do_not_wait_for_each_other_overlap_and_see_only_what_they_come_after():
    seen = {}

    def planner(name, *found):
        def lay_out(rows: pl.DataFrame):
            seen[name] = sorted(rows["run"])
            return found

        return lay_out

    a, b, c = trials(1e-3), trials(1e-2, 2e-2), trials(3e-2)
    stages = (
        Grid("a", planner("a", *a), role="loss_law"),
        Grid("b", planner("b", *b), role="loss_law", after=("a",)),
        Grid("c", planner("c", *c), role="loss_law", after=("a",)),
    )
    agenda = Agenda(space(*stages), {})
    assert agenda.next().name == "g-0.001"
    assert agenda.next() is None
    agenda.finish(outcome(a[0], parabola))
    assert [agenda.next().name for _ in range(3)] == ["g-0.01", "g-0.02", "g-0.03"]
    assert seen == {"a": [], "b": ["g-0.001"], "c": ["g-0.001"]}


def test_the_longest_trial_of_a_grid_comes_first():
    lengths = [Trial(f"n{n}", (BASE.replace(name=f"n{n}", tokens=768 * n),)) for n in (5, 40, 10)]
    agenda = Agenda(grid_space(lambda rows: lengths), {})
    assert [agenda.next().name for _ in range(3)] == ["n40", "n10", "n5"]
    assert cost(lengths[1]) > cost(lengths[2]) > cost(lengths[0])


def test_two_stages_may_not_use_one_name():
    def later(rows):
        return trials(1e-3) if rows.height else []

    stages = (Grid("a", lambda rows: trials(1e-3), role="loss_law"), Grid("b", later, role="loss_law"))
    agenda = Agenda(space(*stages), {})
    with pytest.raises(ConfigError, match="comes more than once"):
        play(agenda, parabola)


def test_a_stage_that_comes_to_another_precision_on_its_way_is_stopped_before_it_trains():
    def later(rows):
        precision = "bf16" if rows.height else "fp32"
        return [Trial("late", (BASE.replace(precision=precision, name="late"),))]

    made = space(search(), Grid("later", later, role="loss_law"))
    with pytest.raises(
        ConfigError, match=r"`precision` must be the same in all proxies, .*late of stage 'later'"
    ):
        play(Agenda(made, {}), parabola)
