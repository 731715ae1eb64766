"""Functions whose jitted body is chosen from argument types, with ordinary annotations."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from numba.extending import overload

OPTIONS: Any = {"nogil": True, "error_model": "numpy"}


def generic(stub: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: give ``stub`` its jitted bodies.

    The decorated function gets Numba types under the stub's parameter names and returns the body to compile, with the
    same parameter names, or None if the types are not its own. This is ``numba.extending.overload`` with annotations
    taken off, which it would compare with one another.
    """

    def register(choose: Callable[..., Any]) -> Callable[..., Any]:
        def body(*given: Any, **named: Any) -> Any:
            chosen = choose(*given, **named)
            if chosen is not None:
                chosen.__annotations__ = {}
            return chosen

        parameters = [p.replace(annotation=p.empty) for p in inspect.signature(choose).parameters.values()]
        body.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        overload(stub, jit_options=OPTIONS)(body)
        return choose

    return register
