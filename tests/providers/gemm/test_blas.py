"""The BLAS forms: exact widening, panels, the limit on threads, and that no byte-exact op can get them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernelmap.models.contract import Tolerance
from kernelmap.registry import load_registry
from kernelmap.spec import BuildSpec
from kernelmap_providers.gemm import blas
from kernelmap_providers.reference.gemm import gemm_nt_fp64

REGISTRY = load_registry()
STORAGE = ("fp32", "fp16", "bf16")


def spec_of(storage: str, rows: int, values: int) -> BuildSpec:
    return BuildSpec(
        provider=f"gemm_nt_{storage}_blas", group=f"{storage}_weight_blas_tolerance_fp32_output", op="gemm_nt",
        variant="blas", dtypes={"x": "fp32", "weight": storage, "y": "fp32"}, dims={"N": rows, "K": values}, params={},
        prepared={}, arithmetic={}, isa=(),
    )  # fmt: skip


def weight_of(storage: str, shape: tuple[int, int]) -> np.ndarray[Any, Any]:
    values = np.random.default_rng(3).standard_normal(shape).astype(np.float32) * np.float32(0.05)
    if storage == "bf16":
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(np.float32 if storage == "fp32" else np.float16)


def product(storage: str, x: np.ndarray[Any, Any], weight: np.ndarray[Any, Any], threads: int = 1) -> tuple[int, Any]:
    y = np.full((len(x), len(weight)), 7, np.float32)
    scratch = () if storage == "fp32" else (np.full(4 * blas.PANEL_ROWS * x.shape[1], 0xFF, np.uint8),)
    status = blas.build(spec_of(storage, *weight.shape))(x, weight, y, *scratch, threads)
    return status, y


@pytest.mark.parametrize("storage", STORAGE)
@pytest.mark.parametrize("rows", [1, 255, 256, 257, 513])
@pytest.mark.parametrize("tokens", [1, 7])
def test_panels_are_within_the_tolerance(storage: str, rows: int, tokens: int) -> None:
    x = np.random.default_rng(1).standard_normal((tokens, 2560)).astype(np.float32)
    weight = weight_of(storage, (rows, 2560))
    status, y = product(storage, x, weight, threads=2)
    rule = REGISTRY.contracts[f"{storage}_weight_blas_tolerance_fp32_output"].equivalence
    assert status == 0 and isinstance(rule, Tolerance)
    want = gemm_nt_fp64(spec_of(storage, rows, 2560), x, weight)["y"]
    assert np.allclose(y, want, rtol=rule.rtol, atol=rule.atol)


@pytest.mark.parametrize("storage", STORAGE)
def test_products_of_one_value_are_exact(storage: str) -> None:
    """One term has no order: widened weights must be the very numbers."""
    weight = weight_of(storage, (300, 1))
    x = np.float32([[1.0], [-2.0]])
    _, y = product(storage, x, weight)
    assert y.tobytes() == gemm_nt_fp64(spec_of(storage, 300, 1), x, weight)["y"].tobytes()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_is_refused_with_its_number(bad: float) -> None:
    x = np.ones((4, 8), np.float32)
    x[2, 7] = bad
    status, y = product("fp32", x, np.ones((3, 8), np.float32))
    assert status == 3 and np.isnan(y).all()


def test_no_tokens() -> None:
    assert product("fp16", np.ones((0, 8), np.float32), weight_of("fp16", (3, 8)))[0] == 0


def test_blas_runs_on_the_callers_threads_and_gets_its_own_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def counts() -> list[int]:
        return [library["num_threads"] for library in blas.blas_controller().info()]

    before, during, matmul = counts(), [], np.matmul

    def spying(*given: Any, **named: Any) -> Any:
        during.append(counts())
        return matmul(*given, **named)

    monkeypatch.setattr(np, "matmul", spying)
    for threads in (1, 2):
        product("fp32", np.ones((2, 8), np.float32), np.ones((3, 8), np.float32), threads)
    assert [max(each) for each in during] == [1, 2]
    assert counts() == before


def test_a_blas_that_cannot_be_limited_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nothing:
        lib_controllers: tuple[()] = ()

        def select(self, **_choice: str) -> Nothing:
            return self

    blas.blas_controller.cache_clear()
    monkeypatch.setattr(blas, "ThreadpoolController", Nothing)
    try:
        with pytest.raises(ValueError, match="byte-exact"):
            blas.build(spec_of("fp32", 1, 1))
    finally:
        blas.blas_controller.cache_clear()


def test_no_shipped_circuit_names_the_groups_and_no_other_group_has_the_providers() -> None:
    for circuit in (Path(__file__).parents[3] / "circuits").glob("*.json"):
        assert "_blas_" not in circuit.read_text(encoding="utf-8")
    for storage in STORAGE:
        own = REGISTRY.ladders[f"{storage}_weight_blas_tolerance_fp32_output"]
        assert [item.id for item in own] == [f"gemm_nt_{storage}_blas"]
    for group, ladder in REGISTRY.ladders.items():
        assert ("_blas_" in group) == any(item.id.endswith("_blas") for item in ladder)
