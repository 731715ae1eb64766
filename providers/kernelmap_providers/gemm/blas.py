"""GEMM over fp32, fp16 and bf16 weights by numpy's BLAS: a group of its own, with a tolerance.

BLAS sums in an order of its own, which may depend on its build, the shape and the threads: such a kernel must never
stand in for a byte-exact one, so only a circuit that names the group can get it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
from threadpoolctl import ThreadpoolController

from kernelmap.spec import BuildSpec

Run = Callable[..., int]
PANEL_ROWS = 256
"""Weight rows that are widened at once: 2.5 MB at 2,560 values. The maps' scratch counts them."""
_blas_threads = Lock()
"""Held while BLAS is limited: its number of threads belongs to the process, and callers would restore one another's."""


@cache
def blas_controller() -> Any:
    """What limits the threads of the BLAS that numpy calls. Raises ValueError where nothing can."""
    np.matmul(np.ones((2, 2), np.float32), np.ones((2, 2), np.float32))  # loads a library that is loaded lazily
    found = ThreadpoolController().select(user_api="blas")
    if not found.lib_controllers:
        raise ValueError("numpy's BLAS is none whose threads can be limited; take the byte-exact group's providers")
    return found


def build(spec: BuildSpec) -> Run:
    """Builder of the BLAS forms: ``run(x, weight, y, workspace, threads)``.

    ``x`` fp32 ``[R, K]``, ``weight`` float32, float16 or uint16 (bf16 bits) ``[N, K]``, ``y`` fp32 ``[R, N]``,
    ``workspace`` uint8 for ``PANEL_ROWS`` widened weight rows (none for fp32). BLAS runs on up to ``threads`` threads.
    Returns 1 + the first row of ``x`` with a NaN or an infinity; ``y`` is then all NaN. Raises ValueError where the
    threads of BLAS cannot be limited.
    """
    storage, controller = spec.dtypes["weight"], blas_controller()

    def multiply(x: npt.NDArray[np.float32], weight: npt.NDArray[Any], y: npt.NDArray[np.float32],
                 workspace: npt.NDArray[np.uint8] | None, threads: int) -> int:  # fmt: skip
        if (bad := _first_bad(x)) >= 0:
            y[...] = np.nan
            return bad + 1
        with _blas_threads, controller.limit(limits=threads), np.errstate(over="ignore", invalid="ignore"):
            if workspace is None:
                np.matmul(x, weight.T, out=y)
                return 0
            panel = workspace[: 4 * PANEL_ROWS * x.shape[1]].view(np.float32).reshape(PANEL_ROWS, -1)
            for first in range(0, len(weight), PANEL_ROWS):
                rows = weight[first : first + PANEL_ROWS]
                np.matmul(x, _widened(storage, rows, panel).T, out=y[:, first : first + PANEL_ROWS])
        return 0

    if storage != "fp32":
        return multiply

    def run(x: npt.NDArray[np.float32], weight: npt.NDArray[Any], y: npt.NDArray[np.float32], threads: int) -> int:
        return multiply(x, weight, y, None, threads)

    return run


def _widened(storage: str, rows: npt.NDArray[Any], panel: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """``rows`` as fp32, exact, in the first rows of ``panel``."""
    here = panel[: len(rows)]
    if storage == "fp16":
        np.copyto(here, rows)
        return here
    bits = here.view(np.uint32)
    np.copyto(bits, rows)
    np.left_shift(bits, 16, out=bits)
    return here


def _first_bad(x: npt.NDArray[np.float32]) -> int:
    """The first row with a NaN or an infinity, or -1."""
    finite = np.isfinite(x).all(axis=1)
    return -1 if finite.all() else int(np.argmin(finite))
