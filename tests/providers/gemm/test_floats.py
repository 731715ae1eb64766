"""The float kernels against the 8-lane oracle: every weight type and form, tails, tiles and threads."""

from __future__ import annotations

import numpy as np
import pytest

from kernelmap_providers.gemm.floats import float_gemm
from kernelmap_providers.reference.dots import DOTS
from kernelmap_providers.simd.target import FORMS, compiled_features, host_form

RUNNABLE = [name for name, form in FORMS.items() if set(form.features) <= compiled_features()]


def weights(name: str, rng: np.random.Generator, rows: int, values: int) -> np.ndarray:
    made = rng.standard_normal((rows, values)).astype(np.float32)
    if name == "fp16":
        made = made.astype(np.float16)
        made[:, ::7] *= np.float16(1e-5)  # subnormals
    return (made.view(np.uint32) >> 16).astype(np.uint16) if name == "bf16" else made


@pytest.mark.parametrize("form", RUNNABLE)
@pytest.mark.parametrize("name", ["fp32", "fp16", "bf16"])
def test_floats_are_the_oracle(name: str, form: str) -> None:
    rng = np.random.default_rng(0)
    for rows, values, tokens in ((13, 64, 9), (8, 83, 4), (5, 7, 3), (1, 8, 1)):
        weight, x = weights(name, rng, rows, values), rng.standard_normal((tokens, values)).astype(np.float32)
        expected = np.stack([DOTS[name](weight, row.view(np.uint8)) for row in x])
        run = float_gemm(name, FORMS[form], rows, values)
        for threads in (1, 2, 3, 8):
            y = np.full((tokens, rows), np.nan, np.float32)
            assert run(x, weight, y, threads) == 0
            assert np.array_equal(y.view(np.int32), expected.view(np.int32))


def test_views_and_bad_rows() -> None:
    rng = np.random.default_rng(1)
    wide = rng.standard_normal((10, 64)).astype(np.float32)
    weight = rng.standard_normal((6, 64)).astype(np.float32)
    run = float_gemm("fp32", host_form(), 6, 32)
    y = np.zeros((5, 6), np.float32)
    assert run(wide[::2, ::2], weight[:, ::2], y, 2) == 0
    expected = [DOTS["fp32"](weight[:, ::2], np.ascontiguousarray(row).view(np.uint8)) for row in wide[::2, ::2]]
    assert np.array_equal(y, np.stack(expected))
    wide[7, 3] = np.nan
    assert run(wide[:, :32], weight[:, :32], np.zeros((10, 6), np.float32), 2) == 1 + 7
