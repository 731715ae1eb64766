"""Builders of small contracts, maps, circuits, inventories and hosts, as JSON values, models and files.

The toy op multiplies a value by a square weight: it chains, so that a circuit may have any number of ops.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelmap.circuit.loading import CircuitFile
from kernelmap.circuit.storage import reference_inventory
from kernelmap.jsonsource import JsonSource, parse_json
from kernelmap.models.circuit import Circuit
from kernelmap.models.contract import Contract
from kernelmap.models.host import Host
from kernelmap.models.inventory import Inventory
from kernelmap.models.kernel_map import KernelMap
from kernelmap.models.loading import validate
from kernelmap.models.plan import Plan
from kernelmap.models.policy import Policy
from kernelmap.registry import Registry, make_registry
from kernelmap.resolver import resolve

Json = dict[str, Any]
OP = "toy_matmul"
GROUP = "toy_fp32"
WIDTH = 64


def group_name(index: int) -> str:
    """Name of the toy group ``index``."""
    return f"toy_group_{index}"


def contract_value(group: str = GROUP, **changes: Any) -> Json:
    """The toy contract: y[R, H] = x[R, H] · weight[H, H]."""
    value: Json = {
        "schema_version": 1,
        "equivalence_group": group,
        "op": OP,
        "summary": "toy",
        "dims": {"R": "tokens", "H": "width"},
        "dynamic_dims": ["R"],
        "inputs": [{"name": "x", "dtype": "fp32", "shape": ["R", "H"]}],
        "weights": [{"name": "weight", "dtype": "fp32", "shape": ["H", "H"]}],
        "outputs": [{"name": "y", "dtype": "fp32", "shape": ["R", "H"]}],
        "equivalence": {"kind": "byte_exact"},
        "oracle": "kernelmap_providers.reference.toy:toy_matmul",
    }
    return {**value, **changes}


def map_value(
    name: str,
    group: str = GROUP,
    *,
    priority: int = 100,
    status: str = "production",
    phases: Sequence[str] = ("prefill", "decode"),
    isa: Sequence[str] = (),
    dims: Mapping[str, Mapping[str, int]] | None = None,
    budget: int | None = None,
    variants: Sequence[Json] = ({"name": "serial"},),
    **changes: Any,
) -> Json:
    """A map of the toy group; ``budget`` gives it a preparation hook that takes H * H bytes a tensor."""
    value: Json = {
        "schema_version": 1,
        "id": name,
        "op": OP,
        "summary": "toy",
        "selection": {
            "status": status,
            "priority": priority,
            "equivalence_group": group,
            "phases": list(phases),
        },
        "impl": {
            "backend": "numba",
            "function": f"kernelmap_providers.toy:{name}",
            "variants": list(variants),
        },
    }
    if isa:
        value["requires"] = {"isa": list(isa)}
    if dims:
        value["constraints"] = {"dims": dims}
    if budget is not None:
        hook = {
            "function": f"kernelmap_providers.toy:prepare_{name}",
            "weights": ["weight"],
            "prepared_format": "toy_x8",
            "prepared_bytes": "H * H",
            "max_total_bytes": budget,
        }
        value["weight_preparation"] = [hook]
    return {**value, **changes}


def op_value(name: str, group: str = GROUP, source: str = "x", **changes: Any) -> Json:
    """A toy op that reads ``source`` and makes ``<name>_out``."""
    value: Json = {
        "name": name,
        "op": OP,
        "equivalence_group": group,
        "inputs": {"x": source},
        "weights": {"weight": f"blk.{{layer}}.{name}.weight"},
        "outputs": {"y": f"{name}_out"},
    }
    return {**value, **changes}


def chain(groups: Sequence[str]) -> list[Json]:
    """Ops ``op0``, ``op1``, … of these groups, each reading the one before."""
    return [op_value(f"op{i}", group, "x" if i == 0 else f"op{i - 1}_out") for i, group in enumerate(groups)]


def circuit_value(ops: Sequence[Json] | None = None, *, layers: int = 2, **changes: Any) -> Json:
    """A circuit of one block in every layer, with reference storage for the ops' weights."""
    ops = list(ops) if ops is not None else chain([GROUP])
    patterns = {pattern for op in ops for pattern in op.get("weights", {}).values() if isinstance(pattern, str)}
    value: Json = {
        "schema_version": 1,
        "id": "toy_circuit",
        "summary": "toy",
        "architectures": ["toy"],
        "config": {"n_layer": {"key": "{arch}.block_count", "type": "int"}},
        "dims": {"H": WIDTH},
        "dynamic_dims": ["R"],
        "inputs": [{"name": "x", "dtype": "fp32", "shape": ["R", "H"], "scope": "layer"}],
        "blocks": {"main": {"ops": ops}},
        "layers": {"count": "config.n_layer", "rules": [{"block": "main"}]},
        "outputs": [{"name": "y", "value": f"{ops[-1]['name']}.y", "scope": "layer"}],
        "storage": {
            "source": "made up",
            "architecture": "toy",
            "metadata": {"toy.block_count": layers},
            "tensors": [{"name": name, "format": "fp32", "shape": ["H", "H"]} for name in sorted(patterns)],
        },
    }
    return {**value, **changes}


def inventory_value(**changes: Any) -> Json:
    """An inventory profile of one tensor."""
    value: Json = {
        "schema_version": 1,
        "architecture": "toy",
        "metadata": {"toy.block_count": 1},
        "tensors": [{"name": "blk.0.op0.weight", "format": "fp32", "shape": [WIDTH, WIDTH]}],
    }
    return {**value, **changes}


def source_of(value: Json, name: str = "toy.json") -> JsonSource:
    """The parsed source of a value, as if it had been read from ``name``."""
    return parse_json(json.dumps(value, indent=2).encode(), name)


def make_contract(group: str = GROUP, **changes: Any) -> Contract:
    """The model of `contract_value`."""
    return validate(source_of(contract_value(group, **changes)), Contract)


def make_map(name: str, group: str = GROUP, **changes: Any) -> KernelMap:
    """The model of `map_value`."""
    return validate(source_of(map_value(name, group, **changes)), KernelMap)


def make_circuit(ops: Sequence[Json] | None = None, *, layers: int = 2, **changes: Any) -> CircuitFile:
    """The model and source of `circuit_value`."""
    source = source_of(circuit_value(ops, layers=layers, **changes), "toy_circuit.json")
    return CircuitFile(validate(source, Circuit), source)


def make_host(isa: Iterable[str] = (), **changes: Any) -> Host:
    """An x86 host with these features."""
    facts: Json = {
        "schema_version": 1, "name": "toy", "arch": "x86_64", "cpu": "generic", "isa": tuple(sorted(isa)),
        "cores": 2, "threads": 2, "memory_bytes": 0,
    }  # fmt: skip
    return Host(**{**facts, **changes})


def registry_of(maps: Iterable[KernelMap], groups: Iterable[str] | None = None) -> Registry:
    """A registry of maps with a toy contract for each group (given, or those of the maps)."""
    maps = list(maps)
    names = set(groups) if groups is not None else {item.selection.equivalence_group for item in maps}
    return make_registry(maps, {name: make_contract(name) for name in sorted(names)})


def write_json(path: Path, value: Json) -> Path:
    """Writes a value indented, with its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    return path


def write_registry(folder: Path, maps: Iterable[Json] = (), contracts: Iterable[Json] = ()) -> Path:
    """A folder of map and contract files named as they must be."""
    folder.mkdir(parents=True, exist_ok=True)
    for value in maps:
        write_json(folder / f"{value['id']}.json", value)
    for value in contracts:
        write_json(folder / "contracts" / f"{value['equivalence_group']}.json", value)
    return folder


@dataclass(frozen=True)
class World:
    """Everything that a resolution depends on."""

    registry: Registry
    circuit: CircuitFile
    host: Host
    policy: Policy = field(default_factory=Policy)

    @property
    def inventory(self) -> Inventory:
        """The circuit's reference inventory."""
        return reference_inventory(self.circuit.circuit, self.circuit.source)

    def plan(self) -> Plan:
        """The plan. Raises KernelmapError if there is none."""
        return resolve(self.circuit.circuit, self.circuit.source, self.inventory, self.registry, self.host, self.policy)
