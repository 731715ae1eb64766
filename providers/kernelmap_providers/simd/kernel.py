"""Generated micro-kernels as intrinsics that jitted drivers call."""

from __future__ import annotations

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


@cache
def tile(fmt: BlockFormat, form: Form, shape: TileShape) -> Any:
    """Intrinsic of a packed tile; arguments as in ``tile.ARGUMENTS``, all int64."""

    def resolve() -> tuple[Any, Any]:
        def codegen(context: Any, builder: ir.IRBuilder, _sig: Any, args: Any) -> Any:
            builder.call(tile_function(builder.module, fmt, form, shape), args)
            return context.get_dummy_value()

        return types.void(*[types.int64] * len(ARGUMENTS)), codegen

    @intrinsic
    def call(  # type: ignore[no-untyped-def]
        typing_context, weights, group_stride, blocks, acts, act_index, act_stride, out, out_index, out_stride, factors
    ):
        return resolve()

    return call


@cache
def rows(fmt: StoredFormat, form: Form, tokens: int) -> Any:
    """Intrinsic of a row kernel; arguments as in ``rows.ARGUMENTS``, all int64."""

    @intrinsic
    def call(typing_context, weights, row_stride, rows, blocks, acts, act_stride, out, out_stride):  # type: ignore[no-untyped-def]
        def codegen(context: Any, builder: ir.IRBuilder, _sig: Any, args: Any) -> Any:
            builder.call(rows_function(builder.module, fmt, form, tokens), args)
            return context.get_dummy_value()

        return types.void(*[types.int64] * len(ROW_ARGUMENTS)), codegen

    return call
