"""Generated micro-kernels as intrinsics that jitted drivers call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from llvmlite import ir
from numba import types

from kernelmap_providers.simd.block import BlockFormat
from kernelmap_providers.simd.rows import ARGUMENTS as ROW_ARGUMENTS
from kernelmap_providers.simd.rows import StoredFormat, rows_function
from kernelmap_providers.simd.static import intrinsic
from kernelmap_providers.simd.target import Form
from kernelmap_providers.simd.tile import ARGUMENTS, TileShape, tile_function


def _caller(arguments: Sequence[str], function_in: Callable[[ir.Module], ir.Function]) -> Any:
    """An intrinsic that calls a generated function of int64 arguments, emitting it into the caller's module."""

    def typing(_context: Any, *_given: Any) -> Any:
        def codegen(context: Any, builder: ir.IRBuilder, _sig: Any, args: Any) -> Any:
            builder.call(function_in(builder.module), args)
            return context.get_dummy_value()

        return types.void(*[types.int64] * len(arguments)), codegen

    names = ("context", *arguments)
    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    typing.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return intrinsic(typing)


@cache
def tile(fmt: BlockFormat, form: Form, shape: TileShape) -> Any:
    """Intrinsic of a packed tile; arguments as in ``tile.ARGUMENTS``, all int64."""
    return _caller(ARGUMENTS, lambda module: tile_function(module, fmt, form, shape))


@cache
def rows(fmt: StoredFormat, form: Form, tokens: int) -> Any:
    """Intrinsic of a row kernel; arguments as in ``rows.ARGUMENTS``, all int64."""
    return _caller(ROW_ARGUMENTS, lambda module: rows_function(module, fmt, form, tokens))
