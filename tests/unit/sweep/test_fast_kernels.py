"""What a plan says of fast kernels: what they buy, or why they are refused."""

import math

import pytest

from froude.config import Run
from froude.sweep import kernels as offers
from froude.sweep.kernels import offer
from froude.train import kernels

RUN = Run(name="a", tokens=768 * 10, model={"width": 32}, eval_windows=96)


@pytest.fixture(autouse=True)
def exact(monkeypatch):
    monkeypatch.setattr(kernels, "matmul_error", lambda: 3e-7)
    monkeypatch.setattr(offers, "SECONDS", 0.0)


def test_the_largest_run_is_timed_and_the_error_told(monkeypatch):
    timed = []
    monkeypatch.setattr(offers, "_ratio", lambda run, fast: timed.append((run, fast)) or 0.7)
    wide = RUN.replace({"model.width": 64})
    found = offer([RUN, wide, RUN])
    assert timed == [(wide, wide.replace({"compute.kernels": "fast"}))]
    assert found.line() == (
        '`compute.kernels` "fast" would take 0.70 of the time of a step here (width 64, fp32; relative error of a '
        "matrix product 3e-07)"
    )
    assert "takes 0.70" in offer([RUN.replace({"compute.kernels": "fast"})]).line()
    assert offer([RUN.replace(precision="bf16")]).error is None
    assert found.to_dict() == {
        "run": wide.name,
        "kernels": "plain",
        "matmul_error": 3e-7,
        "bound": 1e-6,
        "time_ratio": 0.7,
    }


def test_steps_of_both_are_timed():
    assert 0.05 < offer([RUN]).ratio < 20


def test_a_machine_whose_products_are_less_exact_is_told_and_not_timed(monkeypatch):
    monkeypatch.setattr(kernels, "matmul_error", lambda: 2e-3)
    found = offer([RUN])
    assert math.isnan(found.ratio)
    assert found.line() == (
        '`compute.kernels` "fast" is refused here; relative error of a matrix product 2e-03, and at most 1e-06 is '
        "allowed"
    )


def test_models_of_ones_own_and_large_ones_are_not_timed(monkeypatch):
    assert offer([]) is None
    assert offer([RUN.replace({"model.factory": "mine:Model"})]) is None
    monkeypatch.setattr(offers, "AFFORDABLE", 1.0)
    assert offer([RUN]) is None
