"""``new circuit``: a circuit of one op that elaborates at once, with made-up sizes that fit the op's contract."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kernelmap.circuit.loading import CircuitFile, circuit_paths, circuit_problems
from kernelmap.contracts import alignment
from kernelmap.errors import Diagnostic, KernelmapError
from kernelmap.expressions import Env, ExpressionError
from kernelmap.jsonsource import parse_json
from kernelmap.models.base import Scalar
from kernelmap.models.circuit import Circuit
from kernelmap.models.contract import Contract, Param, Port, StatePort
from kernelmap.models.loading import validate
from kernelmap.registry import Registry
from kernelmap.scaffold.files import (
    OURS,
    check_id,
    contract_of,
    folder_for,
    json_text,
    package_folder,
    refuse_taken,
    schema_reference,
    write_all,
)
from kernelmap.sources import shipped_circuits

Json = dict[str, Any]
_MULTIPLES = (4, 8, 2, 1, 16)
"""Sizes tried for a dim, in multiples of its alignment: far from special cases first."""
_LAYERS = 2


def new_circuit(
    id: str, group: str, registry: Registry, *, package: str | None = None, circuits: Path | None = None
) -> Path:
    """Writes a circuit of one op of a group in every layer, with reference storage; returns the file.

    Raises KernelmapError for an unknown group, a taken or malformed id, a contract for which no circuit can be made up
    (KM907), and a place that cannot be written. Nothing is written that does not elaborate.
    """
    contract = contract_of(group, registry)
    check_id(id, "id")
    name, folder = package_folder(package)
    path = folder_for(circuits, shipped_circuits() if name == OURS else folder / "circuits") / f"{id}.json"
    known = circuit_paths()
    refuse_taken(id, (path,), str(known[id]) if id in known else "")
    text = json_text({**schema_reference("circuit", path, name), **_value(id, contract)})
    source = parse_json(text.encode(), str(path))
    made = CircuitFile(validate(source, Circuit), source)
    if problems := circuit_problems(made, registry.contracts, registry.maps):
        why = "; ".join(dict.fromkeys(problem.message for problem in problems))
        raise _refused(contract, why)
    write_all({path: text})
    return path


def _refused(contract: Contract, why: str) -> KernelmapError:
    message = f"no circuit can be made up for group {contract.equivalence_group!r}: {why}"
    return KernelmapError(Diagnostic("KM907", message, help="write the circuit by hand, from a shipped one"))


def _value(id: str, contract: Contract) -> Json:
    params = {param.name: _param(param) for param in contract.params}
    sizes = _sizes(contract, params)
    ports = (*contract.inputs, *contract.weights, *contract.state)
    implied = {str(size) for port in ports for size in port.shape}
    op: Json = {
        "name": contract.op[:64],
        "op": contract.op,
        "equivalence_group": contract.equivalence_group,
        "inputs": {port.name: port.name for port in contract.inputs},
        "weights": {port.name: f"blk.{{layer}}.{contract.op}.{port.name}" for port in contract.weights},
        "state": {port.name: port.name for port in contract.state},
        "dims": {name: sizes[name] for name in contract.dims if name in sizes and name not in implied},
        "params": params,
    }
    return {
        "schema_version": 1,
        "id": id,
        "summary": "Scaffolded circuit: say which model family it serves.",
        "architectures": [id],
        "config": {"n_layer": {"key": "{arch}.block_count", "type": "int"}},
        "dims": {name: sizes[name] for name in contract.dims if name in sizes},
        "dynamic_dims": list(contract.dynamic_dims),
        "inputs": [{**_port(port, contract), "scope": "layer"} for port in contract.inputs],
        **({"state": [_state(port, contract) for port in contract.state]} if contract.state else {}),
        "blocks": {"main": {"ops": [{key: item for key, item in op.items() if item}]}},
        "layers": {"count": "config.n_layer", "rules": [{"block": "main"}]},
        "outputs": [
            {"name": port.name, "value": f"{op['name']}.{port.name}", "scope": "layer"} for port in contract.outputs
        ],
        "storage": {
            "source": "made up by kernelmap new circuit: give the sizes of a real model",
            "architecture": id,
            "metadata": {f"{id}.block_count": _LAYERS},
            "tensors": [
                {"name": op["weights"][port.name], "format": _dtype(port, contract), "shape": _shape(port)}
                for port in contract.weights
            ],
        },
    }


def _shape(port: Port) -> list[int | str]:
    return [size if isinstance(size, int) else str(size) for size in port.shape]


def _dtype(port: Port, contract: Contract) -> str:
    return contract.dtype_vars[port.dtype][0] if port.dtype in contract.dtype_vars else port.dtype


def _port(port: Port, contract: Contract) -> Json:
    return {"name": port.name, "dtype": _dtype(port, contract), "shape": _shape(port)}


def _state(port: StatePort, contract: Contract) -> Json:
    """A state tensor; one that has a dynamic first axis grows along it."""
    grows = bool(port.shape) and str(port.shape[0]) in contract.dynamic_dims
    return {**_port(port, contract), "update": "append" if grows else "replace"}


def _param(param: Param) -> Scalar:
    """A value that a parameter may have: its default, or the least that is allowed."""
    if param.default is not None:
        return param.default
    if param.type == "enum":
        return param.choices[0]
    if param.type == "bool":
        return False
    number = param.min if param.min is not None else min(1, param.max if param.max is not None else 1)
    return int(number) if param.type == "int" else float(number)


def _sizes(contract: Contract, params: Mapping[str, Scalar]) -> dict[str, int]:
    """Sizes of the static dims for which every requirement of the contract holds. Raises KernelmapError if none do."""
    for sizes in itertools.islice(_tries(contract), 20_000):
        env = Env(names={**sizes, **params})
        try:
            if all(predicate.evaluate(env) for predicate in contract.requires):
                return sizes
        except ExpressionError:
            continue
    wanted = ", ".join(str(predicate) for predicate in contract.requires)
    raise _refused(contract, f"no small sizes satisfy {wanted}")


def _tries(contract: Contract) -> Iterator[dict[str, int]]:
    names = [name for name in contract.dims if name in contract.static_dims]
    steps = alignment(contract)
    choices = [[steps.get(name, 1) * multiple for multiple in _MULTIPLES] for name in names]
    for sizes in itertools.product(*choices):
        yield dict(zip(names, sizes, strict=True))
