"""Ratios of rounds: the interval of the sign test, and when a difference is one."""

from __future__ import annotations

import random
from statistics import median

import pytest

from kernelmap.bench.ratios import FLOOR, MOST_NOISE, Ratio, ratio, spread


@pytest.mark.parametrize(("count", "left_out"), [(1, 0), (5, 0), (6, 0), (8, 0), (9, 1), (15, 3), (25, 7)])
def test_the_interval_is_that_of_the_sign_test(count: int, left_out: int) -> None:
    values = [float(n + 1) for n in range(count)]
    found = ratio(values, [1.0] * count)
    assert (found.median, found.low, found.high) == (median(values), values[left_out], values[-1 - left_out])


def test_rounds_are_paired() -> None:
    drift = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]
    found = ratio([2 * value for value in drift], drift)
    assert (found.median, found.low, found.high) == (2.0, 2.0, 2.0)
    with pytest.raises(ValueError, match="argument 2"):
        ratio([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="no rounds"):
        ratio([], [])


def test_the_interval_covers_the_true_ratio_95_times_in_100() -> None:
    rng = random.Random(3)
    missed = 0
    for _ in range(1000):
        rounds = [(rng.lognormvariate(0, 0.2), rng.lognormvariate(0, 0.2)) for _ in range(15)]
        found = ratio([one for one, _ in rounds], [other for _, other in rounds])
        missed += not found.low <= 1 <= found.high
    assert missed <= 60


@pytest.mark.parametrize(
    ("low", "high", "slower", "faster", "unsure"),
    [
        (1.0, 1.0, False, False, False),
        (1 + FLOOR / 2, 1 + FLOOR, False, False, False),
        (1.03, 1.05, True, False, False),
        (0.9, 0.97, False, True, False),
        (0.9, 1 + MOST_NOISE + 0.01, False, False, True),
        (0.5, 0.99, False, False, False),
    ],
)
def test_differences_within_noise_are_none(low: float, high: float, slower: bool, faster: bool, unsure: bool) -> None:
    found = Ratio((low + high) / 2, low, high)
    assert (found.slower, found.faster, found.unsure) == (slower, faster, unsure)


def test_spread_is_half_the_quartile_range() -> None:
    assert spread([1.0]) == 0.0 and spread([2.0, 2.0, 2.0]) == 0.0
    assert spread([1.0, 2.0, 3.0]) == pytest.approx(0.25)
    assert str(Ratio(0.5, 0.25, 11.0)) == "0.50 [0.25, 11]"
