"""Array arguments without ownership: Numba's own unboxing allocates a record of its runtime for every array argument.

The caller keeps the memory while the function runs, which holds for every entry point that Python calls: so the
function gets the bare descriptor. Nothing may keep such an array after the call.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import extending, types
from numba.core import cgutils
from numba.extending import models

_extending: Any = extending
_cgutils: Any = cgutils
ADAPTOR = "numba_adapt_ndarray"
"""Numba's C function that fills a descriptor and counts no reference; what it uses where its runtime is off."""
I32 = ir.IntType(32)


class BorrowedArray(types.Array):
    """Like ``types.Array`` of layout ``A``: views of any stride, alignment and mutability convert to it."""

    def __init__(self, dtype: Any, ndim: int, readonly: bool = False) -> None:
        name = f"BorrowedArray({dtype}, {ndim}, {'readonly' if readonly else 'mutable'})"
        super().__init__(dtype, ndim, "A", readonly=readonly, name=name, aligned=False)


@_extending.register_model(BorrowedArray)
class _BorrowedModel(models.ArrayModel):
    """The descriptor of an array; its owner stays null."""


@_extending.unbox(BorrowedArray)
def _unbox_borrowed(typ: BorrowedArray, obj: Any, context: Any) -> Any:
    make = context.context.make_array(typ)
    native = make(context.context, context.builder)
    place = context.builder.bitcast(native._getpointer(), context.pyapi.voidptr)
    adapt = context.pyapi._get_function(ir.FunctionType(I32, [context.pyapi.pyobj, context.pyapi.voidptr]), ADAPTOR)
    error = _cgutils.is_not_null(context.builder, context.builder.call(adapt, [obj, place]))
    with context.builder.if_then(error, likely=False):
        context.pyapi.err_set_string("PyExc_TypeError", "an argument is not an array")
    # The adaptor knows nothing of owners.
    native.meminfo = _cgutils.get_null_value(native.meminfo.type)
    native.parent = _cgutils.get_null_value(native.parent.type)
    return _extending.NativeValue(native._getvalue(), is_error=error)
