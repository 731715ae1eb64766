"""Storage formats: one module each, with its byte diagram. Plain numpy; imports no kernel.

The functions here choose the module by the format's name. A module offers what applies of ``decode`` (bytes to fp32),
``quantize_rows`` (activation formats), ``random_rows`` (valid random bytes) and ``SCALES`` (the offsets of a block's
floating-point scales).
"""

from __future__ import annotations

import importlib
from types import ModuleType

import numpy as np

from kernelmap.vocabulary import FORMATS
from kernelmap_providers.formats.bits import Array, Bytes, Floats, finite_scales

MODULES = (
    "bf16", "fp16", "mxfp4", "mxfp4_interleaved", "q4_k", "q5_1", "q5_k", "q6_k", "q8_0", "q8_1", "q8_k",
)  # fmt: skip
"""Formats with a module of their own, by name."""


def module_of(name: str) -> ModuleType:
    """The module of format ``name``. Raises ValueError if there is none."""
    if name not in MODULES:
        raise ValueError(f"format {name!r} has no module; there are: {', '.join(MODULES)}")
    return importlib.import_module(f"kernelmap_providers.formats.{name}")


def decode(name: str, rows: Bytes) -> Floats:
    """fp32 values ``[..., K]`` of rows ``uint8 [..., row_bytes]``, as ggml's dequantizers round them.

    Raises ValueError for a format without one-tensor rows (``mxfp4_interleaved``: see its module) or a row that is no
    whole number of blocks.
    """
    if name == "mxfp4_interleaved":
        raise ValueError("mxfp4_interleaved keeps its scales in a second tensor: use its module's decode")
    _whole_blocks(name, rows)
    values: Floats = module_of(name).decode(rows)
    return values


def random_rows(name: str, rng: np.random.Generator, shape: tuple[int, ...]) -> Bytes:
    """Valid random rows of a weight tensor of ``shape`` ``[..., K]`` values: uint8 ``[..., row_bytes]``.

    Every code is drawn; block scales have either sign and spread over several binary orders, some are zero, some
    subnormal. Dots with activations up to 100 stay far from the limits of the activation formats.
    """
    row_bytes = FORMATS[name].row_bytes(shape[-1])
    blocks = (*shape[:-1], row_bytes // FORMATS[name].block_bytes)
    made: Bytes = module_of(name).random_blocks(rng, blocks)
    return made.reshape(*shape[:-1], row_bytes)


def first_bad_row(name: str, rows: Bytes) -> tuple[int, ...] | None:
    """Index of the first row ``uint8 [..., row_bytes]`` with a scale that is NaN or infinite; None if all are finite.

    Index means the leading axes, e.g. ``(expert, row)``.
    """
    _whole_blocks(name, rows)
    bad = ~finite_scales(rows, FORMATS[name].block_bytes, module_of(name).SCALES)
    if not bad.any():
        return None
    first = np.unravel_index(int(np.argmax(bad)), bad.shape)
    return tuple(int(axis) for axis in first)


def _whole_blocks(name: str, rows: Bytes) -> None:
    size = FORMATS[name].block_bytes
    if rows.dtype != np.uint8 or rows.ndim == 0 or rows.shape[-1] % size:
        raise ValueError(f"{name} rows are uint8 of a multiple of {size} bytes, not {rows.dtype} {rows.shape}")


__all__ = ["MODULES", "Array", "Bytes", "Floats", "decode", "first_bad_row", "module_of", "random_rows"]
