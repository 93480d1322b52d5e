"""What counts as an estimate, and what is said of everything else."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys

import numpy as np
import pytest

import tunekit
from tunekit import Estimate
from tunekit.errors import ConfigError


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def problems_of(**given):
    with pytest.raises(ConfigError) as caught:
        Estimate(**given)
    assert caught.value.where == "Estimate"
    return caught.value.problems


def test_numbers_become_plain_ones():
    kept = Estimate(mean=np.float32(0.5), n=np.int64(7), variance=np.array(0.25), bounds=[0, 1])
    assert kept == Estimate(0.5, 7, 0.25, (0.0, 1.0))
    assert [type(kept.mean), type(kept.n), type(kept.variance)] == [float, int, float]
    assert type(kept.bounds) is tuple


def test_tensors_become_plain_numbers(torch):
    mean = torch.tensor([0.25, 0.75], requires_grad=True).mean()
    kept = Estimate(mean=mean, n=torch.tensor(2), variance=torch.tensor(0.0625), bounds=(0, 1))
    assert kept == Estimate(0.5, 2, 0.0625, (0.0, 1.0))
    assert Estimate(torch.tensor(0.5), torch.ones(4).sum(), torch.tensor(1.0)).n == 4


def test_an_estimate_does_not_change_and_travels():
    kept = Estimate(0.5, 7, bounds=(0, 1))
    assert pickle.loads(pickle.dumps(kept)) == kept
    assert {kept: 1}[Estimate(0.5, 7, bounds=(0, 1))] == 1
    with pytest.raises(AttributeError):
        kept.mean = 0.6  # type: ignore[misc]


def test_it_is_public_and_its_module_needs_nothing_but_python():
    assert tunekit.Estimate is Estimate
    code = """
import sys, types
package = types.ModuleType("tunekit")
package.__path__ = [sys.argv[1]]
sys.modules["tunekit"] = package
import tunekit.core.confidence
heavy = {"ray", "numpy", "scipy", "torch", "pandas"} & set(sys.modules)
assert not heavy, heavy
"""
    folder = tunekit.__path__[0]
    subprocess.run([sys.executable, "-c", code, folder], check=True, timeout=60)


@pytest.mark.parametrize("mean", [math.nan, math.inf, -math.inf, "0.5", None, 1j, [0.5, 0.6]])
def test_a_mean_is_a_finite_number(mean):
    (problem,) = problems_of(mean=mean, n=3, bounds=(0, 1))
    assert problem.startswith("mean=") and "finite number" in problem


@pytest.mark.parametrize("n", [0, -1, 1.5, True, None, "3", math.nan, math.inf])
def test_n_is_a_whole_number(n):
    (problem,) = problems_of(mean=0.5, n=n, bounds=(0, 1))
    assert problem.startswith(f"n={n!r} must be a whole number of at least 1.")


@pytest.mark.parametrize("variance", [-1e-9, math.nan, math.inf, "0.1", [0.1, 0.2]])
def test_a_variance_is_a_finite_number_of_at_least_0(variance):
    (problem,) = problems_of(mean=0.5, n=3, variance=variance)
    assert problem.startswith("variance=") and "at least 0" in problem


@pytest.mark.parametrize(
    "bounds",
    [(1, 0), (1, 1), (0,), (0, 1, 2), 1, "01", (0, math.inf), (math.nan, 1), (None, 1), {0: 1}],
)
def test_bounds_are_two_numbers_in_order(bounds):
    (problem,) = problems_of(mean=0.5, n=3, bounds=bounds)
    assert problem.startswith("bounds=") and "low < high" in problem


@pytest.mark.parametrize("mean", [-0.01, 1.01, 81.0])
def test_the_mean_is_within_the_bounds(mean):
    (problem,) = problems_of(mean=mean, n=3, bounds=(0, 1))
    assert f"mean={mean} is outside bounds=(0, 1)" in problem
    assert Estimate(mean=mean, n=3, bounds=(-100, 100)).mean == mean


def test_bounds_or_variance_is_needed():
    (problem,) = problems_of(mean=0.5, n=3)
    assert problem.startswith("variance=None and bounds=None")
    assert Estimate(0.5, 3, variance=0).variance == 0


def test_a_variance_is_not_more_than_the_bounds_allow(torch):
    hits = torch.tensor([1.0, 1.0, 0.0, 1.0])
    (problem,) = problems_of(mean=hits.mean(), n=4, variance=hits.var(), bounds=(0, 1))
    assert "0.1875" in problem and "correction=0" in problem
    kept = Estimate(hits.mean(), 4, hits.var(correction=0), (0, 1))
    assert kept.variance == pytest.approx(0.1875)
    wide = Estimate(5, 10, variance=25, bounds=(0, 10))
    assert wide.variance == 25
    assert len(problems_of(mean=5, n=10, variance=25.1, bounds=(0, 10))) == 1


def test_rounding_is_forgiven():
    assert Estimate(1 + 5e-7, 9, bounds=(0, 1)).mean == 1
    assert Estimate(-5e-7, 9, bounds=(0, 1)).mean == 0
    assert Estimate(0.5, 9, variance=0.25 + 5e-7, bounds=(0, 1)).variance == 0.25
    values = np.full(1000, 0.1, dtype=np.float32)
    assert Estimate(values.mean(), 1000, values.var(), (0, float(values[0]))).n == 1000


def test_all_mistakes_are_reported_together():
    found = problems_of(mean=math.nan, n=0, variance=-1, bounds=(1, 0))
    assert [text.split("=")[0] for text in found] == ["mean", "n", "variance", "bounds"]
    found = problems_of(mean=2, n=0.5, bounds=(0, 1))
    assert [text.split("=")[0] for text in found] == ["n", "mean"]
