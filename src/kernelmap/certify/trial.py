"""Trials: one provider on one case, with everything around it watched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernelmap.bind import Runner, load_function, load_runner
from kernelmap.certify.corpus import Case, shape_of
from kernelmap.certify.weights import Array
from kernelmap.models.contract import Contract, Tolerance
from kernelmap.models.kernel_map import KernelMap, Variant
from kernelmap.session import NUMPY_TYPES

GUARD_BYTES = 512
PATTERNS = (0x5A, 0xFF)
"""What outputs and scratch hold before a run; 0xFF makes every float a NaN. What is never written shows in one."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What was wrong in a trial."""

    case: str
    threads: int
    text: str

    def __str__(self) -> str:
        return f"{self.case} threads={self.threads}: {self.text}"


@dataclass(frozen=True, slots=True)
class Trial:
    """Result of a provider on a case: faults, and the worst error against the oracle."""

    faults: tuple[Fault, ...]
    worst_error: float


class Subject:
    """A provider's variant, built and with its weights prepared once for a case."""

    def __init__(self, item: KernelMap, variant: Variant, case: Case) -> None:
        self.item, self.variant, self.case = item, variant, case
        self.run = load_runner(item, case.contract, case.spec)
        hooks = {port: hook for hook in item.weight_preparation for port in hook.weights}
        self.weights: dict[str, Any] = {}
        for port in case.contract.weights:
            array = case.arrays[port.name]
            hook = hooks.get(port.name)
            if array is None or hook is None:
                self.weights[port.name] = array
                continue
            self.weights[port.name] = load_function(hook.function)(
                array,
                source_format=case.spec.dtypes[port.name],
                prepared_format=hook.prepared_format,
                shape=shape_of(port, case.dims),
            )

    def trial(self, expected: tuple[int, Mapping[str, Array]], threads: int) -> Trial:
        """Runs twice over different old contents, and compares status, bytes (or tolerance), guards and inputs."""
        faults: list[Fault] = []
        worst = 0.0
        for pattern in PATTERNS:
            status, outputs, texts = self.call(threads, pattern)
            if status != expected[0]:
                texts.append(f"status {status}, and the oracle says {expected[0]}")
            elif status == 0:
                error, differing = compare(self.case.contract, expected[1], outputs)
                worst = max(worst, error)
                texts += differing
            faults += [Fault(self.case.label, threads, text) for text in texts]
        return Trial(tuple(dict.fromkeys(faults)), worst)

    def call(self, threads: int, pattern: int) -> tuple[int, dict[str, Array], list[str]]:
        """As `guarded_call`; writes to the raw weights are noticed too."""
        case = self.case
        before = {name: _copy(array) for name, array in self.weights.items() if isinstance(array, np.ndarray)}
        outputs = {
            port.name: (np.dtype(NUMPY_TYPES[case.spec.dtypes[port.name]]), shape_of(port, case.dims))
            for port in case.contract.outputs
        }
        status, made, texts = guarded_call(
            self.run, self.item, case.contract, case.dims, case.arrays, self.weights, outputs, threads, pattern
        )
        for name, array in before.items():
            if array is not None and array.tobytes() != self.weights[name].tobytes():
                texts.append(f"wrote to its input {name}")
        return status, made, texts


def guarded_call(
    run: Runner,
    item: KernelMap,
    contract: Contract,
    dims: Mapping[str, int],
    given: Mapping[str, Array | None],
    weights: Mapping[str, Any],
    outputs: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]],
    threads: int,
    pattern: int,
) -> tuple[int, dict[str, Array], list[str]]:
    """Runs a kernel on copies of its inputs and state, with outputs and scratch of its own that hold ``pattern``.

    ``outputs`` is port to dtype and shape. Returns (status, outputs and new state, writes outside of buffers or to an
    input). Weights are the ones given, not copies.
    """
    inputs = {p.name: _copy(given.get(p.name)) for p in contract.inputs}
    state = {p.name: _copy(given.get(p.name)) for p in contract.state}
    guarded: dict[str, tuple[Array, Array]] = {}
    made: dict[str, Array] = {}
    for name, (dtype, shape) in outputs.items():
        whole, view = _guarded(int(np.prod(shape)) * dtype.itemsize, pattern)
        guarded[name] = (whole, view)
        made[name] = view.view(dtype).reshape(shape)
    scratch = []
    for entry in item.scratch:
        guarded[entry.name] = _guarded(entry.size_bytes.evaluate({**dims, "threads": threads}), pattern)
        scratch.append(guarded[entry.name][1])
    stored = [weights.get(p.name) for p in contract.weights]
    status = int(run(*inputs.values(), *stored, *state.values(), *made.values(), *scratch, threads))
    texts = [f"wrote outside {name}" for name, (whole, view) in guarded.items() if not _intact(whole, view)]
    for name, after in inputs.items():
        array = given.get(name)
        if array is not None and after is not None and array.tobytes() != after.tobytes():
            texts.append(f"wrote to its input {name}")
    return status, {**made, **{n: a for n, a in state.items() if a is not None}}, texts


def compare(
    contract: Contract, expected: Mapping[str, Array], actual: Mapping[str, Array], sides: int = 1
) -> tuple[float, list[str]]:  # fmt: skip
    """(largest absolute difference, what differs beyond the contract's equivalence).

    ``sides`` tolerances lie between the two: 2 where both are providers.
    """
    worst, texts = 0.0, []
    written = [port.name for port in contract.state if port.access != "read"]
    for name in (*(port.name for port in contract.outputs), *written):
        want, have = np.asarray(expected[name]), actual[name]
        if want.dtype != have.dtype or want.shape != have.shape:
            texts.append(f"{name} is {have.dtype} {list(have.shape)}, and the oracle's {want.dtype} {list(want.shape)}")
            continue
        error = largest(want, have)
        worst = max(worst, error)
        rule = contract.equivalence
        if isinstance(rule, Tolerance):
            if not np.allclose(
                plain(have), plain(want), rtol=sides * rule.rtol, atol=sides * rule.atol, equal_nan=True
            ):
                texts.append(f"{name} is beyond the tolerance, by up to {error:.3g}")
        elif want.tobytes() != have.tobytes():
            bytes_want = np.ascontiguousarray(want).view(np.uint8).reshape(want.size, -1)
            bytes_have = np.ascontiguousarray(have).view(np.uint8).reshape(want.size, -1)
            count = int((bytes_want != bytes_have).any(axis=1).sum())
            texts.append(f"{name} differs in {count} of {want.size} values, by up to {error:.3g}")
    return worst, texts


def plain(array: Array) -> Array:
    """Values as fp64; uint16 arrays are bf16 bit patterns."""
    if array.dtype == np.uint16:
        return (array.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
        return array.astype(np.float64)


def largest(want: Array, have: Array) -> float:
    """Largest absolute difference of two arrays of one shape; inf where one alone is not finite."""
    if want.size == 0:
        return 0.0
    with np.errstate(invalid="ignore", over="ignore"):
        difference = np.abs(plain(have) - plain(want))
    same = (want == have) | (np.isnan(plain(want)) & np.isnan(plain(have)))
    return float(np.max(np.where(same, 0.0, np.where(np.isfinite(difference), difference, np.inf))))


def _copy(array: Array | None) -> Array | None:
    return None if array is None else array.copy()


def _guarded(size: int, pattern: int) -> tuple[Array, Array]:
    """(a buffer of the pattern, a 4096-aligned view of ``size`` bytes with guards before and behind)."""
    whole = np.full(size + 2 * GUARD_BYTES + 4096, pattern, np.uint8)
    start = GUARD_BYTES + -(whole.ctypes.data + GUARD_BYTES) % 4096
    whole[start - GUARD_BYTES : start] = 0xA5
    whole[start + size : start + size + GUARD_BYTES] = 0xA5
    return whole, whole[start : start + size]


def _intact(whole: Array, view: Array) -> bool:
    start = view.ctypes.data - whole.ctypes.data if view.size else _start_of(whole)
    end = start + view.size
    return bool((whole[start - GUARD_BYTES : start] == 0xA5).all() and (whole[end : end + GUARD_BYTES] == 0xA5).all())


def _start_of(whole: Array) -> int:
    return GUARD_BYTES + int(-(whole.ctypes.data + GUARD_BYTES) % 4096)
