"""Sessions: run a bound plan, count what ran, and keep state from call to call."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kernelmap.bind import BoundOp, BoundPlan, BoundVariant
from kernelmap.circuit.instances import Dim, Value
from kernelmap.errors import Diagnostic, KernelInputError, KernelmapError, nearest
from kernelmap.expressions import ExpressionError
from kernelmap.planner import Layout, Request, plan_arena
from kernelmap.vocabulary import FORMATS, Phase

Array = np.ndarray[Any, Any]
Observer = Callable[[str, int, int], None]
Probe = Callable[["OpCall"], Callable[[int], None] | None]
"""Called before each kernel call; what it returns is called after it, with the kernel's status."""

MAX_THREADS = 256
"""Most kernel threads of a session; pools are sized for it."""
NUMPY_TYPES = {
    "fp64": np.float64, "fp32": np.float32, "fp16": np.float16, "bf16": np.uint16, "i8": np.int8, "i16": np.int16,
    "i32": np.int32, "i64": np.int64, "u8": np.uint8, "u32": np.uint32, "bool": np.bool_,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """One executed op."""

    op: str
    layer: int | None
    phase: Phase
    provider: str
    variant: str
    fallback_from: tuple[str, ...]
    """Variants that were passed over, in order, before the one that ran."""
    seconds: float


@dataclass(frozen=True, slots=True)
class OpCall:
    """A kernel call as a probe sees it: the very arrays, which a probe may read and must copy to keep."""

    bound: BoundOp
    variant: str
    dims: Mapping[str, int]
    """All dims of the contract, static and dynamic."""
    threads: int
    inputs: Mapping[str, Array | None]
    state: Mapping[str, Array | None]
    outputs: Mapping[str, Array]
    """Filled only after the call."""


@dataclass(slots=True)
class Session:
    """Runs a bound plan. One call at a time (KM529), since its arena and state are its own: a thread takes a session
    of its own over the same bound plan.

    ``threads`` is passed to every kernel and never changes a result. ``capacity`` sizes the dynamic dims of state
    tensors (such as a cache's length). ``probe`` sees every kernel call, those of phase init included.

    A call that fails may have overwritten part of a ``replace`` state: the session then refuses calls until `reset`.
    An ``append`` state needs no such care, its rows are written again.
    """

    bound: BoundPlan
    threads: int = 1
    capacity: Mapping[str, int] = field(default_factory=dict)
    probe: Probe | None = None
    trace: list[TraceEntry] = field(default_factory=list)
    executed: Counter[tuple[str, Phase, str]] = field(default_factory=Counter)
    """(op with layer, phase, provider) to calls."""
    _arena: Array = field(default_factory=lambda: np.empty(0, np.uint8))
    _layouts: dict[tuple[Phase, tuple[tuple[str, int], ...]], Layout] = field(default_factory=dict)
    _state: dict[str, Array] = field(default_factory=dict)
    _kept: dict[str, Array] = field(default_factory=dict)
    """Outputs of phase init."""
    _unsure: bool = False
    """Whether a call failed while a ``replace`` state may have been half written."""
    _calling: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 1 <= self.threads <= MAX_THREADS:
            message = f"threads is between 1 and {MAX_THREADS}, not {self.threads}"
            raise KernelmapError(Diagnostic("KM520", message))
        self._check_capacity()
        for key, state in self.bound.elaborated.states.items():
            shape = tuple(self._size(size, self.capacity, f"state {state.name}") for size in state.shape)
            try:
                self._state[key] = np.zeros(shape, NUMPY_TYPES[state.dtype])
            except (MemoryError, ValueError):  # ValueError: more bytes than addresses
                raise KernelmapError(Diagnostic("KM527", f"no memory for state {state.name} {list(shape)}")) from None
        if Phase.INIT in self.bound.steps:
            self._kept = self._execute(Phase.INIT, {}, dict(self.capacity), keep_all=True)

    def prefill(self, inputs: Mapping[str, Array], observer: Observer | None = None) -> dict[str, Array]:
        """Runs many tokens. ``inputs`` by name, or ``name/layer`` for inputs given once a layer; outputs likewise."""
        return self._call(Phase.PREFILL, inputs, observer)

    def decode(self, inputs: Mapping[str, Array], observer: Observer | None = None) -> dict[str, Array]:
        """Runs one step; otherwise as `prefill`."""
        return self._call(Phase.DECODE, inputs, observer)

    def reset(self) -> None:
        """Forgets every earlier call: state is zero again."""
        with self._alone():
            for array in self._state.values():
                array[...] = 0
            self._unsure = False

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Refuses a second call while one runs: both would write into one arena, and a kernel past the end of it."""
        if not self._calling.acquire(blocking=False):
            help = "give each thread a session of its own over the same bound plan"
            raise KernelmapError(Diagnostic("KM529", "another thread is in a call of this session", help=help))
        try:
            yield
        finally:
            self._calling.release()

    def _check_capacity(self) -> None:
        known = self.bound.elaborated.circuit.dynamic_dims
        problems: list[Diagnostic] = []
        for name, size in self.capacity.items():
            if name not in known:
                near = nearest(name, known)
                problems.append(Diagnostic("KM525", f"the circuit has no dynamic dim {name!r}", near=near))
            elif size < 0:
                problems.append(Diagnostic("KM525", f"capacity {name} is at least 0, not {size}"))
        if problems:
            raise KernelmapError(problems)

    def _call(self, phase: Phase, inputs: Mapping[str, Array], observer: Observer | None) -> dict[str, Array]:
        if phase not in self.bound.steps:
            raise KernelmapError(Diagnostic("KM521", f"the plan has no phase {phase.value}"))
        with self._alone():
            if self._unsure:
                help = "reset the session, and feed it from the start"
                message = "an earlier call failed half-way through the state"
                raise KernelmapError(Diagnostic("KM528", message, help=help))
            dims = dict(self.capacity)
            values = self._inputs(inputs, dims)
            self._unsure = any(item.update == "replace" for item in self.bound.elaborated.states.values())
            outputs = self._execute(phase, values, dims, observer)
            self._unsure = False
            return outputs

    # Inputs

    def _inputs(self, inputs: Mapping[str, Array], dims: dict[str, int]) -> dict[str, Array]:
        declared = self.bound.elaborated.inputs
        problems: list[Diagnostic] = []
        values: dict[str, Array] = {}
        for name in sorted(set(inputs) - set(declared)):
            problems.append(Diagnostic("KM522", f"the circuit has no input {name!r}", near=nearest(name, declared)))
        for name, value in declared.items():
            if name not in inputs:
                problems.append(Diagnostic("KM522", f"input {name!r} is missing"))
                continue
            try:
                array = np.asarray(inputs[name])
            except ValueError as error:  # rows of unequal length
                problems.append(Diagnostic("KM523", f"input {name!r} is no array: {error}"))
                continue
            if why := _unfit(array, value, dims):
                problems.append(Diagnostic("KM523", f"input {name!r}: {why}"))
            values[value.key] = np.ascontiguousarray(array)
        if problems:
            raise KernelInputError(problems)
        return values

    # Running

    def _execute(
        self, phase: Phase, values: dict[str, Array], dims: dict[str, int], observer: Observer | None = None,
        keep_all: bool = False,
    ) -> dict[str, Array]:  # fmt: skip
        steps = self.bound.steps[phase]
        layout = self._layout(phase, dims)
        base = self._reserve(layout)
        values.update(self._kept)
        made: dict[str, Array] = {}
        for index, bound in enumerate(steps):
            if observer is not None:
                observer(bound.name, index, len(steps))
            self._run(bound, index, values, dims, layout, base)
            if keep_all:
                made |= {v.key: values[v.key].copy() for v in bound.instance.outputs.values()}
        if keep_all:
            return made
        outputs = self.bound.elaborated.outputs
        return {name: values[value.key].copy() for name, value in outputs.items() if value.key in values}

    def _run(
        self, bound: BoundOp, index: int, values: dict[str, Array], dims: Mapping[str, int], layout: Layout, base: Array
    ) -> None:
        instance, contract = bound.instance, bound.instance.shared.contract
        here = self._dims_of(bound, dims)
        variant, passed = select_variant(bound, here)
        inputs = {p.name: self._value(instance.inputs.get(p.name), values) for p in contract.inputs}
        weights = [bound.weights.get(p.name) for p in contract.weights]
        state = {p.name: self._state[instance.state[p.name]] if p.name in instance.state else None
                 for p in contract.state}  # fmt: skip
        outputs: dict[str, Array] = {}
        for port in contract.outputs:
            value = instance.outputs[port.name]
            shape = tuple(self._size(size, dims, value.key) for size in value.shape)
            outputs[port.name] = _view(base, layout, value.key).view(NUMPY_TYPES[value.dtype]).reshape(shape)
            values[value.key] = outputs[port.name]
        scratch = [_view(base, layout, _scratch_key(index, item.name)) for item in bound.map.scratch]
        after = None
        if self.probe is not None:
            after = self.probe(OpCall(bound, variant.plan.name, here, self.threads, inputs, state, outputs))
        started = time.perf_counter()
        status = variant.run(*inputs.values(), *weights, *state.values(), *outputs.values(), *scratch, self.threads)
        seconds = time.perf_counter() - started
        if after is not None:
            after(int(status))
        if status:
            self._refused(bound, status)
        self.executed[(bound.name, bound.phase, bound.map.id)] += 1
        self.trace.append(
            TraceEntry(
                bound.decision.name, instance.layer, bound.phase, bound.map.id, variant.plan.name, passed, seconds
            )
        )

    def _refused(self, bound: BoundOp, status: int) -> None:
        layer = "" if bound.instance.layer is None else f" layer {bound.instance.layer}"
        message = (
            f"{bound.decision.name}{layer} ({bound.phase.value}): {bound.map.id} refuses row {status - 1} of its input"
        )
        help = "a NaN or infinity, a value too large for the activation format, or an index out of range"
        raise KernelInputError(Diagnostic("KM530", message, help=help))

    def _value(self, value: Value | None, values: Mapping[str, Array]) -> Array | None:
        if value is None:
            return None
        entries = self.bound.elaborated.lists.get(value.key)
        if entries is not None:
            return np.stack([values[key] for key in entries])
        if value.key not in values and value.shape and value.shape[0] == 0:
            raise KernelmapError(Diagnostic("KM524", f"{value.key} is an empty list"))
        return values[value.key]

    def _dims_of(self, bound: BoundOp, dims: Mapping[str, int]) -> dict[str, int]:
        shared = bound.instance.shared
        dynamic = {name: self._size(size, dims, name) for name, size in shared.dynamic.items()}
        return {**shared.dims, **dynamic}

    def _size(self, size: Dim, dims: Mapping[str, int], about: str) -> int:
        if isinstance(size, int):
            return size
        if size not in dims:
            help = "give it in the session's capacity"
            raise KernelmapError(Diagnostic("KM525", f"{about}: nothing gives dynamic dim {size}", help=help))
        return dims[size]

    # Memory

    def _layout(self, phase: Phase, dims: Mapping[str, int]) -> Layout:
        key = (phase, tuple(sorted(dims.items())))
        if key not in self._layouts:
            if len(self._layouts) > 64:
                self._layouts.clear()  # every batch size its own layout: bounded, rebuilt when needed
            self._layouts[key] = plan_arena(self._requests(phase, dims))
        return self._layouts[key]

    def _requests(self, phase: Phase, dims: Mapping[str, int]) -> Iterator[Request]:
        """Outputs live from their op to their last reader; scratch lives in its op."""
        steps = self.bound.steps[phase]
        last: dict[str, int] = {}
        lists = self.bound.elaborated.lists
        for index, bound in enumerate(steps):
            for value in bound.instance.inputs.values():
                for key in lists.get(value.key, (value.key,)):
                    last[key] = index
        last |= {value.key: len(steps) for value in self.bound.elaborated.outputs.values()}
        for index, bound in enumerate(steps):
            for value in bound.instance.outputs.values():
                count = 1
                for size in value.shape:
                    count *= self._size(size, dims, value.key)
                nbytes = count * FORMATS[value.dtype].block_bytes
                yield Request(value.key, nbytes, 64, index, last.get(value.key, index))
            here = {**self._dims_of(bound, dims), "threads": self.threads}
            for item in bound.map.scratch:
                try:
                    nbytes = item.size_bytes.evaluate(here)
                except ExpressionError as error:
                    message = f"{bound.name}: scratch {item.name}: {error.message}"
                    raise KernelmapError(Diagnostic("KM526", message)) from None
                yield Request(_scratch_key(index, item.name), nbytes, item.alignment, index, index)

    def _reserve(self, layout: Layout) -> Array:
        """The arena, grown if need be, from an aligned start."""
        need = layout.size + layout.alignment
        if self._arena.nbytes < need:
            try:
                self._arena = np.empty(need, np.uint8)
            except (MemoryError, ValueError, OverflowError):
                raise KernelmapError(Diagnostic("KM527", f"no memory for an arena of {need:,} bytes")) from None
        start = -self._arena.ctypes.data % layout.alignment
        return self._arena[start:]

    def check_counters(self) -> None:
        """Executed equals selected: raises KernelmapError if an op ran under a provider not in the plan."""
        chosen = {(op.name, phase, op.map.id) for phase, ops in self.bound.steps.items() for op in ops}
        strangers = sorted(
            f"{name} ({phase.value}): {provider}" for name, phase, provider in set(self.executed) - chosen
        )
        if strangers:
            raise KernelmapError([Diagnostic("KM531", f"not what the plan selected: {item}") for item in strangers])


def select_variant(bound: BoundOp, dims: Mapping[str, int]) -> tuple[BoundVariant, tuple[str, ...]]:
    """(the variant that runs, those passed over): the first listed enabled variant whose guards hold.

    The registry saw to it that every fallback stands behind its variant and that the base variant, which has no guard,
    ends every chain: so the list order is the fallback order.
    """
    by_name = {variant.plan.name: variant for variant in bound.variants}
    passed: list[str] = []
    for planned in bound.decision.variants:
        variant = by_name.get(planned.name)
        if variant is not None and variant.admits(dims):
            return variant, tuple(passed)
        passed.append(planned.name)
    raise KernelmapError(Diagnostic("KM532", f"{bound.name}: no variant of {bound.map.id} may run"))


def _scratch_key(index: int, name: str) -> str:
    return f"scratch/{index}/{name}"


def _view(base: Array, layout: Layout, key: str) -> Array:
    offset = layout.offsets[key]
    return base[offset : offset + layout.sizes[key]]


def _unfit(array: Array, value: Value, dims: dict[str, int]) -> str:
    """Why an array is not what an input declares; binds dynamic dims on the way. Empty if it fits."""
    wanted = np.dtype(NUMPY_TYPES[value.dtype])
    if array.dtype != wanted:
        return f"dtype {array.dtype}, not {wanted}"
    if array.ndim != len(value.shape):
        return f"shape {list(array.shape)}, not [{', '.join(map(str, value.shape))}]"
    for size, actual in zip(value.shape, array.shape, strict=True):
        known = size if isinstance(size, int) else dims.setdefault(size, actual)
        if known != actual:
            return (
                f"shape {list(array.shape)} where [{', '.join(map(str, value.shape))}] with {size} = {known} is taken"
            )
    return ""
