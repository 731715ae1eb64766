"""Numba types whose values are LLVM vectors: they live in registers, as locals and arguments of inlined functions.

They cannot be array elements or return values to Python; memory is reached by address (``ops.load``, ``ops.store``).
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import extending, types
from numba.core.imputils import lower_constant

from kernelmap_providers.simd.emit import F16, F32, I8, I16, I32, I64, vector
from kernelmap_providers.simd.static import Static, StaticType

_extending: Any = extending
_lower_constant: Any = lower_constant

ELEMENTS: dict[str, tuple[ir.Type, types.Type]] = {
    "i8": (I8, types.int8),
    "i16": (I16, types.int16),
    "i32": (I32, types.int32),
    "i64": (I64, types.int64),
    "f16": (F16, types.uint16),
    "f32": (F32, types.float32),
}
"""Lane types: the LLVM type, and the Numba scalar that fills a lane (an fp16 lane has no scalar but its bits)."""


class VectorType(types.Type):
    """``count`` lanes of ``element``; signedness lies in the operations."""

    def __init__(self, element: str, count: int) -> None:
        self.element, self.count = element, count
        self.llvm_type = vector(ELEMENTS[element][0], count)
        super().__init__(name=f"{element}x{count}")

    @property
    def floating(self) -> bool:
        """Whether lanes are floating-point numbers."""
        return self.element.startswith("f")

    @property
    def scalar(self) -> types.Type:
        """Numba type of one lane."""
        return ELEMENTS[self.element][1]


@_extending.register_model(VectorType)
class _VectorModel(_extending.models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, dmm: Any, fe_type: VectorType) -> None:
        super().__init__(dmm, fe_type, fe_type.llvm_type)


@_lower_constant(StaticType)
def _static_constant(context: Any, _builder: Any, _typ: StaticType, _value: Static) -> Any:
    """Module-level statics (such as vector kinds) used inside jitted code."""
    return context.get_dummy_value()


def kind_of(static: StaticType) -> VectorType:
    """The vector type that a kind such as ``Static("f32", 8)`` names."""
    element, count = static.parts
    return VectorType(str(element), int(count))


I8X16, I8X32, I8X64 = Static("i8", 16), Static("i8", 32), Static("i8", 64)
I16X8, I16X16, I16X32 = Static("i16", 8), Static("i16", 16), Static("i16", 32)
I32X8, I32X16 = Static("i32", 8), Static("i32", 16)
F16X8, F32X8, F32X16 = Static("f16", 8), Static("f32", 8), Static("f32", 16)
I8X8, I16X4, I64X8 = Static("i8", 8), Static("i16", 4), Static("i64", 8)
