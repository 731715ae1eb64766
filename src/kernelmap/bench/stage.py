"""A stage for one op: a model file of random weights and a circuit that runs the op once for each copy of them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from kernelmap.bench.spots import STEPS, Spot, Verdict, circuit_spots, sizes_text
from kernelmap.certify.corpus import shape_of
from kernelmap.certify.weights import Array, Style, random_weight
from kernelmap.circuit.elaborate import elaborate
from kernelmap.circuit.loading import CircuitFile
from kernelmap.errors import Diagnostic, KernelmapError
from kernelmap.expressions import ExpressionError
from kernelmap.jsonsource import parse_json
from kernelmap.models.circuit import Circuit
from kernelmap.models.contract import Port
from kernelmap.models.host import Host
from kernelmap.models.inventory import FileStamp, Inventory, TensorInfo, stored_bytes
from kernelmap.models.loading import validate
from kernelmap.models.policy import Policy
from kernelmap.registry import Registry
from kernelmap.session import NUMPY_TYPES
from kernelmap.vocabulary import DTYPES, Phase

STREAM_BYTES = 64 << 20
"""Weights of all copies together, so that few caches hold them and calls read them from memory, as in a model."""
MOST_COPIES = 64
INPUT_SETS = 8
_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Stage:
    """A circuit of one op, and an inventory whose bytes lie in a temporary file."""

    spot: Spot
    circuit: CircuitFile
    inventory: Inventory
    copies: int


def stored_size(spot: Spot) -> int:
    """Bytes of one copy of an op's weights as stored. Raises KernelmapError (KM583) if a row is no whole blocks."""
    total = 0
    for port in _weights(spot):
        size = stored_bytes(spot.dtypes[port.name], _shape(spot, port))
        if size < 0:
            raise _no_call(spot, f"{port.name} has no whole {spot.dtypes[port.name]} blocks")
        total += size
    return total


def copies_for(nbytes: int) -> int:
    """How many copies of weights of ``nbytes`` bytes make memory, not a cache, deliver them."""
    return max(1, min(MOST_COPIES, -(-STREAM_BYTES // nbytes))) if nbytes else 1


@contextmanager
def stage(spot: Spot, phase: Phase, copies: int) -> Iterator[Stage]:
    """A stage whose file lives as long as the block. Raises KernelmapError: KM583 no call can be made of the op, KM586
    the temporary file cannot be written.
    """
    circuit = _circuit(spot, phase, copies)
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="kernelmap-bench-"))
            path = Path(folder) / "weights.bin"
            tensors = _write(spot, copies, path)
            facts = path.stat()
        except OSError as error:
            message = f"cannot write temporary weights: {error.strerror or error}"
            raise KernelmapError(Diagnostic("KM586", message, help="set TMPDIR to a folder with room")) from None
        inventory = Inventory(
            schema_version=1, architecture="bench", tensors=tensors, files=(str(path),),
            stamps=(FileStamp(size=facts.st_size, mtime_ns=facts.st_mtime_ns),),
        )  # fmt: skip
        yield Stage(spot, circuit, inventory, copies)


def judged(spot: Spot, registry: Registry, host: Host) -> Spot:
    """The spot with the resolver's verdicts at its dims, in every phase that some provider of the group lists.

    Raises KernelmapError if the op does not fit its contract at these dims, or if the policy names what does not exist.
    """
    inventory = Inventory(schema_version=1, architecture="bench", tensors=tuple(
        TensorInfo(name=_tensor_name(port.name, 0), format=spot.dtypes[port.name], shape=_shape(spot, port))
        for port in _weights(spot)))  # fmt: skip
    ladder = registry.ladders.get(spot.contract.equivalence_group, ())
    listed = {phase for item in ladder for phase in item.selection.phases}
    verdicts: dict[Phase, Verdict] = {}
    for phase in STEPS:
        if phase in listed:
            circuit = _circuit(spot, phase, 1)
            elaborated = elaborate(circuit.circuit, circuit.source, inventory, registry.contracts)
            verdicts |= circuit_spots(circuit, elaborated, registry, host, _for(spot.policy, phase))[0].verdicts
    return replace(spot, verdicts=verdicts)


def _for(policy: Policy, phase: Phase) -> Policy:
    """Without pins that another phase has: they would be pins of an op that the stage's circuit lacks."""
    return policy.model_copy(update={"pin": tuple(p for p in policy.pin if p.phase in (None, phase))})


def inputs_of(spot: Spot, tokens: int) -> tuple[dict[str, Array], ...]:
    """Seeded random inputs of calls: normal floats, integers within the port's bounds and different in each row.

    Several sets where inputs say which weights are read (as routers do), so that calls do not read the same ones.
    """
    dims = {**spot.dims, **dict.fromkeys(spot.contract.dynamic_dims, tokens)}
    count = INPUT_SETS if any(port.domain is not None for port in _inputs(spot)) else 1
    generators = [np.random.default_rng([1, index]) for index in range(count)]
    return tuple({p.name: _values(p, spot.dtypes[p.name], dims, rng) for p in _inputs(spot)} for rng in generators)


def _inputs(spot: Spot) -> list[Port]:
    return [port for port in spot.contract.inputs if port.name in spot.dtypes]


def _weights(spot: Spot) -> list[Port]:
    return [port for port in spot.contract.weights if port.name in spot.dtypes]


def _tensor_name(port: str, copy: int) -> str:
    return f"blk.{copy}.{port}.weight"


def _circuit(spot: Spot, phase: Phase, copies: int) -> CircuitFile:
    contract = spot.contract
    if contract.state:
        raise _no_call(spot, "it has state, which an op alone cannot be given")
    op: dict[str, Any] = {
        "name": spot.op, "op": contract.op, "equivalence_group": contract.equivalence_group, "phases": [phase.value],
        "inputs": {port.name: port.name for port in _inputs(spot)},
        "weights": {port.name: f"blk.{{layer}}.{port.name}.weight" for port in _weights(spot)},
        "dims": dict(spot.dims), "params": dict(spot.params),
    }  # fmt: skip
    value = {
        "schema_version": 1, "id": "bench", "summary": "One op, once for each copy of its weights.",
        "architectures": ["bench"], "dynamic_dims": list(contract.dynamic_dims),
        "inputs": [{"name": p.name, "dtype": spot.dtypes[p.name], "shape": _dims_of(spot, p)} for p in _inputs(spot)],
        "blocks": {"bench": {"ops": [op]}}, "layers": {"count": copies, "rules": [{"block": "bench"}]},
        "outputs": [{"name": p.name, "value": f"{spot.op}.{p.name}", "scope": "layer"} for p in contract.outputs],
    }  # fmt: skip
    source = parse_json(json.dumps(value, indent=1).encode(), "(bench circuit)")
    return CircuitFile(validate(source, Circuit), source)


def _dims_of(spot: Spot, port: Port) -> list[int | str]:
    found: list[int | str] = []
    for item in port.shape:
        if isinstance(item, int) or str(item) in spot.contract.dynamic_dims:
            found.append(item if isinstance(item, int) else str(item))
            continue
        try:
            found.append(item.evaluate(spot.dims))
        except ExpressionError:
            raise _no_call(spot, f"the shape of {port.name} mixes static and dynamic dims: {item}") from None
    return found


def _shape(spot: Spot, port: Port) -> tuple[int, ...]:
    try:
        return shape_of(port, spot.dims)
    except ExpressionError as error:
        raise _no_call(spot, f"the shape of {port.name}: {error.message}") from None


def _no_call(spot: Spot, why: str) -> KernelmapError:
    message = f"no call of {spot.contract.equivalence_group} can be made: {why}"
    return KernelmapError(Diagnostic("KM583", message, found=sizes_text(spot.dims)))


def _write(spot: Spot, copies: int, path: Path) -> tuple[TensorInfo, ...]:
    """Writes different weights for every copy: equal ones could be prepared once and shared."""
    tensors: list[TensorInfo] = []
    with path.open("wb") as file:
        for copy in range(copies):
            rng = np.random.default_rng([2, copy])
            for port in _weights(spot):
                file.write(b"\0" * (-file.tell() % _ALIGNMENT))
                shape, dtype = _shape(spot, port), spot.dtypes[port.name]
                name, offset = _tensor_name(port.name, copy), file.tell()
                file.write(np.ascontiguousarray(_values(port, dtype, spot.dims, rng)).data)
                tensors.append(TensorInfo(name=name, format=dtype, shape=shape, offset=offset))
        file.write(b"\0" * _ALIGNMENT)  # a file of no weights cannot be mapped
    return tuple(tensors)


def _values(port: Port, dtype: str, dims: Mapping[str, int], rng: np.random.Generator) -> Array:
    shape = shape_of(port, dims)
    if (bounds := port.typical or port.domain) is not None:
        return _integers(bounds.min.evaluate(dims), bounds.max.evaluate(dims), shape, rng).astype(NUMPY_TYPES[dtype])
    if dtype not in DTYPES or dtype in ("fp16", "bf16"):
        return random_weight(dtype, rng, shape, Style.PLAIN)
    return (rng.standard_normal(shape) * 0.5).astype(NUMPY_TYPES[dtype])


def _integers(low: int, high: int, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Uniform integers; those of a short row differ, as the experts of a token do."""
    width = shape[-1] if shape else 0
    if len(shape) == 2 and 0 < width <= high + 1 - low <= 65536:
        ranks = rng.random((*shape[:-1], high + 1 - low))
        return low + np.argpartition(ranks, width - 1, axis=-1)[..., :width]
    return rng.integers(low, high + 1, shape)
