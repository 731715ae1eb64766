"""How an oracle says that it refuses an input."""

from __future__ import annotations

from typing import Any

import numpy as np


class RefusedRow(ValueError):  # noqa: N818 - a verdict, not a failure of the oracle
    """A row of the first input holds what the contract refuses; ``row`` is the least such row, and a provider returns
    ``row + 1``.
    """

    def __init__(self, row: int, why: str) -> None:
        self.row = row
        super().__init__(f"row {row}: {why}")


def demand_finite(row: int, values: np.ndarray[Any, Any], name: str) -> None:
    """Raises RefusedRow if one of ``values`` is NaN or infinite."""
    if not np.isfinite(values).all():
        raise RefusedRow(row, f"{name} holds a NaN or an infinity")
