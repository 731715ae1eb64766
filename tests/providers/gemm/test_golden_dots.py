"""Our dots beside ggml's recorded ones, by the rule at the end of NUMERICS: 1e-5 of the sum of magnitudes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kernelmap_providers.formats import decode
from kernelmap_providers.gemm.packed import packed_gemm, workspace_bytes
from kernelmap_providers.gemm.stored import STORED_FORMATS
from kernelmap_providers.packed.layouts import PACKED_OF
from kernelmap_providers.packed.weight import aligned_bytes
from kernelmap_providers.preparation.hooks import prepare_x8
from kernelmap_providers.simd.target import host_form

GOLDEN = Path(__file__).parents[2] / "data" / "golden" / "blocks.npz"


@pytest.mark.parametrize("name", sorted(STORED_FORMATS))
def test_dots_are_ggmls_but_for_rounding(name: str) -> None:
    with np.load(GOLDEN) as golden:
        x, weight, dots = golden["act"], golden[f"q_{name.upper()}"], golden[f"dot_{name.upper()}"]
    held = np.isfinite(dots).all(axis=1)
    assert held.sum() >= len(held) - 1, "q8_1 cannot hold the one huge row"
    rows, values = len(weight), x.shape[1]
    prepared = prepare_x8(weight, source_format=name, prepared_format=f"{name}_x8", shape=(rows, values))
    run = packed_gemm(PACKED_OF[name], host_form(), rows, values)
    y = np.zeros((int(held.sum()), rows), np.float32)
    space = aligned_bytes(workspace_bytes(PACKED_OF[name], len(y), values))
    assert run(x[held], prepared, y, space, 2) == 0
    magnitude = np.abs(x[held]).astype(np.float64) @ np.abs(decode(name, weight)).astype(np.float64).T
    assert (np.abs(y - dots[held]) <= 1e-5 * magnitude + 1e-30).all()
    if not held.all():
        space = aligned_bytes(workspace_bytes(PACKED_OF[name], len(x), values))
        status = run(x, prepared, np.zeros((len(x), rows), np.float32), space, 2)
        assert status == 1 + int(np.argmin(held))
