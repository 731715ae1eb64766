"""Atomics, calls by address and libc's thread primitives for the worker pool, as intrinsics on int64 addresses."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from kernelmap_providers.simd.emit import I64, PTR, VOID
from kernelmap_providers.simd.static import intrinsic

_i64 = types.int64


@intrinsic
def atomic_load(typing_context: Any, address: Any) -> Any:
    """The int64 at ``address``, with acquire order."""

    def codegen(_context: Any, builder: ir.IRBuilder, _sig: Any, args: Any) -> Any:
        return builder.load_atomic(builder.inttoptr(args[0], PTR), "acquire", 8, typ=I64)

    return _i64(_i64), codegen


def _rmw(operation: str, doc: str) -> Any:
    """A read-modify-write in sequentially consistent order, which returns the old value."""

    def typing(typing_context: Any, address: Any, value: Any) -> Any:
        def codegen(_context: Any, builder: ir.IRBuilder, _sig: Any, args: Any) -> Any:
            # llvmlite accepts only typed pointers here.
            pointer = builder.inttoptr(args[0], I64.as_pointer())
            return builder.atomic_rmw(operation, pointer, args[1], "seq_cst")

        return _i64(_i64, _i64), codegen

    made = intrinsic(typing)
    made.__doc__ = doc
    return made


atomic_add = _rmw("add", "Add to the int64 at an address; returns the value before.")
atomic_swap = _rmw("xchg", "Replace the int64 at an address; returns the value before.")
atomic_min = _rmw("min", "Keep the smaller of the int64 at an address and the argument; returns the value before.")


@intrinsic
def spin_pause(typing_context: Any) -> Any:
    """A hint that this thread spins; nothing on machines without one."""

    def codegen(context: Any, builder: ir.IRBuilder, _sig: Any, _args: Any) -> Any:
        module = builder.module
        arch = module.triple.partition("-")[0]
        name = {"x86_64": "llvm.x86.sse2.pause", "aarch64": "llvm.aarch64.hint"}.get(arch)
        if name is not None:
            given = [ir.Constant(ir.IntType(32), 1)] if arch == "aarch64" else []
            function = module.globals.get(name) or ir.Function(
                module, ir.FunctionType(VOID, [value.type for value in given]), name
            )
            builder.call(function, given)
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def call_task(typing_context: Any, task: Any, params: Any, index: Any, count: Any, control: Any) -> Any:
    """Call the native task at address ``task``: ``task(null, params, index, count, control)``, all int64."""

    def codegen(_context: Any, builder: ir.IRBuilder, _sig: Any, args: Any) -> Any:
        kind = ir.FunctionType(I64, [PTR] + [I64] * 4)
        function = builder.inttoptr(args[0], kind.as_pointer())
        return builder.call(function, [ir.Constant(PTR, None), *args[1:]])

    return _i64(_i64, _i64, _i64, _i64, _i64), codegen


@intrinsic
def load_word(typing_context: Any, address: Any) -> Any:
    """A plain int64 load."""

    def codegen(_context: Any, builder: ir.IRBuilder, _sig: Any, args: Any) -> Any:
        return builder.load(builder.inttoptr(args[0], PTR), typ=I64)

    return _i64(_i64), codegen


@intrinsic
def address_of(typing_context: Any, value: Any) -> Any:
    """Address of a copy of ``value`` in the calling function's stack frame. What it refers to stays the caller's."""

    def codegen(_context: Any, builder: ir.IRBuilder, _sig: Any, args: Any) -> Any:
        with builder.goto_entry_block():
            slot = builder.alloca(args[0].type)
        builder.store(args[0], slot)
        return builder.ptrtoint(slot, I64)

    return _i64(value), codegen


def load_value(context: Any, builder: ir.IRBuilder, kind: Any, address: Any) -> Any:
    """For intrinsics: the value of type ``kind`` that ``address_of`` put at ``address``, with its own reference."""
    pointer = builder.inttoptr(address, context.get_value_type(kind).as_pointer())
    value = builder.load(pointer)
    context.nrt.incref(builder, kind, value)
    return value


def external(name: str, *arguments: Any) -> Any:
    """A C function of the process that returns an int."""
    return types.ExternalFunction(name, types.int32(*arguments))


mutex_init = external("pthread_mutex_init", _i64, _i64)
mutex_lock = external("pthread_mutex_lock", _i64)
mutex_unlock = external("pthread_mutex_unlock", _i64)
condition_init = external("pthread_cond_init", _i64, _i64)
condition_wait = external("pthread_cond_wait", _i64, _i64)
condition_signal = external("pthread_cond_signal", _i64)
yield_core = external("sched_yield")
sleep_microseconds = external("usleep", _i64)
