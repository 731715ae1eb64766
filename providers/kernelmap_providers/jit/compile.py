"""The two decorators of kernels: inner functions, and entry points that are cached on disk."""

from __future__ import annotations

from typing import Any

from numba import njit, types
from numba.core.dispatcher import Dispatcher

from kernelmap_providers.jit.store import SourceCache


def jit(function: Any, inline: bool = False) -> Any:
    """An inner function: compiled into its callers, without the GIL, IEEE division, never fastmath."""
    return njit(nogil=True, error_model="numpy", forceinline=inline)(function)


def inlined(function: Any) -> Any:
    """As ``jit``, always inlined: for helpers that take or return vectors, which otherwise go through memory."""
    return jit(function, inline=True)


def entry(function: Any) -> Any:
    """An entry point: as ``jit``, each compiled signature kept on disk (see ``store.SourceCache``).

    Only what Python or the worker pool calls is an entry; its callees lie inside its machine code.
    """
    dispatcher = jit(function)
    dispatcher._cache = SourceCache(function)
    return dispatcher


def compiled(dispatcher: Dispatcher, *signature: types.Type) -> Any:
    """``dispatcher`` with ``signature`` compiled or loaded, so that no call waits for it later."""
    dispatcher.compile(signature)
    return dispatcher


def sealed(dispatcher: Dispatcher, *signature: types.Type) -> Any:
    """``dispatcher`` with this one signature: arguments are converted to it, or refused with a TypeError.

    While a dispatcher may compile, it prefers a new signature to a conversion (of a mutable array to a read-only one,
    say): the first call would wait for that.
    """
    if signature not in dispatcher.overloads:
        dispatcher.disable_compile(False)
        dispatcher.compile(signature)
    dispatcher.disable_compile()
    return dispatcher


def native_address(dispatcher: Dispatcher, *signature: types.Type) -> int:
    """Address of the C-callable function of one signature, for the worker pool.

    Statics count as arguments: pass a null pointer for each.
    """
    dispatcher.compile(signature)
    result: Any = dispatcher.overloads[signature]
    return int(result.library.get_pointer_to_function(result.fndesc.llvm_cfunc_wrapper_name))
