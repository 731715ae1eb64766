"""Ratios of interleaved rounds, and what may be concluded from them. Imports nothing heavy, for `promotion`."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

FLOOR = 0.02
"""Differences below 2 % are never called differences: placement of code and data alone makes as much."""
MOST_NOISE = 0.10
"""A ratio whose interval reaches further than this above 1 proves nothing for a promotion."""
LEAST_ROUNDS = 7
"""With fewer rounds than 6 even the whole range of the ratios covers their median with less than 95 %."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """Median of the ratios of rounds, and an interval that holds the true median 95 times in 100 (from 6 rounds on)."""

    median: float
    low: float
    high: float

    @property
    def slower(self) -> bool:
        """Whether the first takes longer, beyond noise and the floor."""
        return self.low > 1 + FLOOR

    @property
    def faster(self) -> bool:
        """Whether the first takes less time, beyond noise and the floor."""
        return self.high < 1 - FLOOR

    @property
    def unsure(self) -> bool:
        """Whether a loss of more than a tenth could hide in the noise."""
        return self.high > 1 + MOST_NOISE

    def __str__(self) -> str:
        """``0.83 [0.81, 0.86]``; two digits below a tenth, whole numbers from ten on."""
        low, high = _digits(self.low), _digits(self.high)
        return f"{_digits(self.median)} [{low}, {high}]"


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def ratio(seconds: Sequence[float], base: Sequence[float]) -> Ratio:
    """Of paired rounds: how long the first takes in units of ``base``.

    The interval is that of the sign test: it assumes nothing about how times are distributed. Raises ValueError for
    no rounds or different numbers of them.
    """
    if not seconds:
        raise ValueError("no rounds")
    found = sorted(one / other for one, other in zip(seconds, base, strict=True))
    cut = _cut(len(found))
    return Ratio(statistics.median(found), found[cut], found[-1 - cut])


def _cut(count: int) -> int:
    """How many of the least and of the greatest of ``count`` values a 95 % interval of the median leaves out."""
    below = 0.0
    for cut in range((count + 1) // 2):
        below += math.comb(count, cut) * 2.0**-count
        if 2 * below > 0.05:
            return max(0, cut - 1)
    return 0


def spread(seconds: Sequence[float]) -> float:
    """Half the range between the quartiles, as a part of the median: how much one provider's rounds vary."""
    if len(seconds) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return (high - low) / 2 / middle
