"""Weight blocks with factors that are not finite are refused with tensor and row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernelmap.vocabulary import FORMATS
from kernelmap.weight_checks import first_bad_row, weight_problems

BLOCKED = sorted(name for name, item in FORMATS.items() if item.halves or item.exponent is not None)


def rows_of(storage: str) -> np.ndarray[Any, Any]:
    known = FORMATS[storage]
    return np.full((2, 3, 4 * known.block_bytes), 0x11, np.uint8)


@pytest.mark.parametrize("storage", BLOCKED)
def test_every_factor_of_every_format_is_looked_at(storage: str) -> None:
    known = FORMATS[storage]
    clean = rows_of(storage)
    assert first_bad_row(storage, clean) is None
    for offset in known.halves:
        for bits in (b"\x00\x7c", b"\x01\xfe", b"\xff\xff"):  # inf, NaN, -NaN
            damaged = clean.copy()
            at = 2 * known.block_bytes + offset
            damaged[1, 1, at : at + 2] = np.frombuffer(bits, np.uint8)
            assert first_bad_row(storage, damaged) == 4
        largest = clean.copy()
        largest[0, 0, offset : offset + 2] = np.frombuffer(b"\xff\x7b", np.uint8)  # 65504
        assert first_bad_row(storage, largest) is None
    if known.exponent is not None:
        damaged = clean.copy()
        damaged[0, 2, known.exponent] = 255
        assert first_bad_row(storage, damaged) == 2


@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_numbers_are_looked_at(kind: Any) -> None:
    storage = {np.float32: "fp32", np.float16: "fp16"}[kind]
    values = np.ones((3, 5), kind)
    assert first_bad_row(storage, values) is None
    values[2, 4] = np.inf
    assert first_bad_row(storage, values) == 2


def test_bf16_bit_patterns_are_looked_at() -> None:
    bits = np.full((2, 3), 0x7F7F, np.uint16)
    assert first_bad_row("bf16", bits) is None
    bits[1, 0] = 0xFF80
    assert first_bad_row("bf16", bits) == 1


def test_the_problem_names_tensor_and_row() -> None:
    values = np.ones((3, 5), np.float32)
    values[1, 1] = np.nan
    (problem,) = weight_problems("blk.0.x.weight", "fp32", values)
    assert problem.code == "KM511" and "blk.0.x.weight" in problem.message and "row 1" in problem.message


def test_empty_tensors_pass() -> None:
    assert first_bad_row("q4_k", np.zeros((0, 144), np.uint8)) is None
    assert first_bad_row("i32", np.zeros(3, np.int32)) is None
