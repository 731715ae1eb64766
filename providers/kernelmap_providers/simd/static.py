"""Compile-time values as Numba arguments.

A jitted function that closes over another one, or over an intrinsic, is never found again in Numba's disk cache by a
second process. So whatever selects code (a format, an instruction form, a tile size) is passed as an argument of a
singleton type, and ``numba.extending.overload`` reads it from the type. The type's name is part of the cache key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import extending, types
from numba.extending import models

Part = str | int
_extending: Any = extending
"""Untyped in part, and typed for calls in part."""


class Static:
    """A hashable constant that jitted code receives as a type, e.g. ``Static("q4_k_x8", "avx2")``."""

    def __init__(self, *parts: Part) -> None:
        self.parts = parts


class StaticType(types.Type):
    """Numba type of one ``Static``; carries its parts and no run-time data."""

    def __init__(self, parts: tuple[Part, ...]) -> None:
        self.parts = parts
        super().__init__(name=f"Static{parts!r}")


@_extending.register_model(StaticType)
class _StaticModel(models.OpaqueModel):
    """No data: a null pointer stands for the value."""


@_extending.typeof_impl.register(Static)
def _typeof_static(value: Static, _context: Any) -> StaticType:
    return StaticType(value.parts)


@_extending.unbox(StaticType)
def _unbox_static(_typ: StaticType, _obj: Any, context: Any) -> Any:
    return _extending.NativeValue(context.context.get_dummy_value())


def intrinsic(typing: Callable[..., Any]) -> Any:
    """``numba.extending.intrinsic``, whose own annotations do not know that callers leave the typing context out."""
    return _extending.intrinsic(typing)
