"""Compile-time values as Numba arguments.

A jitted function that closes over another one, or over an intrinsic, is never found again in Numba's disk cache by a
second process. So whatever selects code (a format, an instruction form, a tile size) is passed as an argument of a
singleton type, and ``numba.extending.overload`` reads it from the type. The type's name is part of the cache key.
"""

from __future__ import annotations

from typing import Any

from numba import types
from numba.extending import NativeValue, models, register_model, typeof_impl, unbox

Part = str | int


class Static:
    """A hashable constant that jitted code receives as a type, e.g. ``Static("q4_k_x8", "avx2")``."""

    def __init__(self, *parts: Part) -> None:
        self.parts = parts


class StaticType(types.Type):  # type: ignore[misc]
    """Numba type of one ``Static``; carries its parts and no run-time data."""

    def __init__(self, parts: tuple[Part, ...]) -> None:
        self.parts = parts
        super().__init__(name=f"Static{parts!r}")


@register_model(StaticType)
class _StaticModel(models.OpaqueModel):  # type: ignore[misc]
    """No data: a null pointer stands for the value."""


@typeof_impl.register(Static)
def _typeof_static(value: Static, _context: Any) -> StaticType:
    return StaticType(value.parts)


@unbox(StaticType)
def _unbox_static(_typ: StaticType, _obj: Any, context: Any) -> NativeValue:
    return NativeValue(context.context.get_dummy_value())
