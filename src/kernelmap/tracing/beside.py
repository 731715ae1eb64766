"""Running another provider beside a call: on copies of its inputs and state, with memory of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernelmap.bind import BoundOp
from kernelmap.certify.trial import guarded_call, largest, plain
from kernelmap.models.contract import Contract, Tolerance
from kernelmap.models.tracing import Difference, Divergence, Number, Side
from kernelmap.session import OpCall, select_variant
from kernelmap.vocabulary import Phase

Array = np.ndarray[Any, Any]
UNWRITTEN = 0xFF
"""What outputs and scratch of another provider hold before it runs: a NaN in every float, so that gaps show."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Another provider compared with production in one call."""

    op: BoundOp
    divergence: Divergence | None
    worst: float
    """Largest absolute difference, also one that the contract allows."""


class Beside:
    """A probe of a session that runs other providers after each production call, and tells what came of each.

    Production's arrays are only read. ``others`` is (op with layer, phase) to the other providers; the weights of each
    are its own, or views of the read-only model file.
    """

    def __init__(self, others: Mapping[tuple[str, Phase], Sequence[BoundOp]], tell: Callable[[Outcome], None]) -> None:
        self.others, self.tell = others, tell
        self.calls: Counter[tuple[str, Phase]] = Counter()

    def __call__(self, call: OpCall) -> Callable[[int], None] | None:
        """Keeps what the call is given, and returns what runs and compares the others once it is done."""
        key = (call.bound.name, call.bound.phase)
        others = self.others.get(key)
        if not others:
            return None
        self.calls[key] += 1
        number = self.calls[key]
        given = {name: None if a is None else a.copy() for name, a in (*call.inputs.items(), *call.state.items())}

        def after(status: int) -> None:
            for op in others:
                self.tell(_beside(op, call, given, status, number))

        return after


def _beside(op: BoundOp, call: OpCall, given: Mapping[str, Array | None], status: int, number: int) -> Outcome:
    contract = op.instance.shared.contract
    variant, _ = select_variant(op, call.dims)
    outputs = {name: (array.dtype, array.shape) for name, array in call.outputs.items()}
    differences: tuple[Difference, ...] = ()
    theirs, worst = 0, 0.0
    try:
        theirs, made, faults = guarded_call(
            variant.run, op.map, contract, call.dims, given, op.weights, outputs, call.threads, UNWRITTEN
        )
    except Exception as error:  # noqa: BLE001  # whatever a candidate does, production goes on and it is recorded
        faults = [f"raises {type(error).__name__}: {error}"[:500]]
    else:
        if theirs != status:
            faults.append(f"status {theirs}, and production's is {status}")
        elif status == 0:
            reference = {**call.outputs, **{n: a for n, a in call.state.items() if a is not None}}
            differences, worst = compare(contract, reference, made)
    if not (faults or differences):
        return Outcome(op, None, worst)
    divergence = Divergence(
        op=call.bound.decision.name, layer=call.bound.instance.layer, phase=call.bound.phase, call=number,
        group=op.instance.shared.group,
        expected=Side(provider=call.bound.map.id, variant=call.variant, status=status),
        found=Side(provider=op.map.id, variant=variant.plan.name, status=theirs),
        differences=differences, faults=tuple(faults),
    )  # fmt: skip
    return Outcome(op, divergence, worst)


def compare(
    contract: Contract, expected: Mapping[str, Array], found: Mapping[str, Array]
) -> tuple[tuple[Difference, ...], float]:
    """(what departs beyond the contract, by port; largest absolute difference of all) of outputs and written state.

    Arrays of a port have the same shape and dtype on both sides; ports that ``expected`` lacks are left out.
    """
    worst, departed = 0.0, []
    written = [port.name for port in contract.state if port.access != "read"]
    for name in (*(port.name for port in contract.outputs), *written):
        if name not in expected:
            continue
        want, have = expected[name], found[name]
        error = largest(want, have)
        worst = max(worst, error)
        wrong = _departing(contract, want, have)
        if wrong.any():
            departed.append(_difference(name, want, have, wrong, error))
    return tuple(departed), worst


def _departing(contract: Contract, want: Array, have: Array) -> Array:
    """For each element, whether it departs beyond the contract."""
    rule = contract.equivalence
    if isinstance(rule, Tolerance):
        return ~np.isclose(plain(have), plain(want), rtol=rule.rtol, atol=rule.atol, equal_nan=True)
    size = want.dtype.itemsize
    one, two = (np.ascontiguousarray(a).reshape(-1).view(np.uint8).reshape(-1, size) for a in (want, have))
    return np.asarray((one != two).any(axis=1).reshape(want.shape))


def _difference(name: str, want: Array, have: Array, wrong: Array, error: float) -> Difference:
    index = np.unravel_index(int(np.argmax(wrong)), wrong.shape) if wrong.shape else ()
    return Difference(
        port=name,
        index=tuple(int(i) for i in index),
        expected=_value(want[index]),
        found=_value(have[index]),
        expected_bytes=np.asarray(want[index]).tobytes().hex(),
        found_bytes=np.asarray(have[index]).tobytes().hex(),
        count=int(wrong.sum()),
        size=int(wrong.size),
        max_error=number(error),
    )


def _value(item: Any) -> Number:
    """An element as a number; uint16 is bf16's bits."""
    array = np.asarray(item)
    if array.dtype.kind in "iub" and array.dtype != np.uint16:
        return int(array)
    return number(float(plain(array.reshape(1))[0]))


def number(value: float) -> Number:
    """A float as JSON can hold it."""
    return value if np.isfinite(value) else str(value)
