"""The q5_1 providers by the names under which the field's reference system publishes them."""

from __future__ import annotations

from kernelmap.spec import BuildSpec
from kernelmap_providers.gemm import unpacked
from kernelmap_providers.gemm.packed import Run


def gemm_nt_q5_1_q8_1_m4(spec: BuildSpec) -> Run:
    """Many tokens: each weight block is unpacked once and dotted with four token rows."""
    return unpacked.build(spec)


def gemv_q5_1_q8_1(spec: BuildSpec) -> Run:
    """One token row at a time."""
    return unpacked.build_per_row(spec)
