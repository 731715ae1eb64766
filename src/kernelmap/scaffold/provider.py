"""``new provider``: a map and a provider file that pass ``check`` and conformance from the start."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kernelmap.models.contract import Contract
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
from kernelmap.sources import shipped_maps

_PROVIDER = '''"""{summary}

Scaffolded: computes with the contract's oracle, so that conformance passes from the start. Replace the body of ``run``
and keep conformance passing.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
from kernelmap.spec import BuildSpec

Array = np.ndarray[Any, Any]

ORACLE = "{oracle}"


def {id}(spec: BuildSpec) -> Callable[..., int]:
    """Builds the provider; see ``kernelmap show {group}``.

    Returns ``run``, which writes the outputs in place and returns 0, or 1 + the first bad row.
    """
    module, _, name = ORACLE.partition(":")
    oracle = getattr(importlib.import_module(module), name)

    def run({signature}, threads: int) -> int:
        given: dict[str, Any] = {{{given}}}
        made = oracle(spec, **{{name: value for name, value in given.items() if value is not None}})
{writes}
        return 0

    return run
'''


@dataclass(frozen=True, slots=True)
class Scaffold:
    """Two files that were written."""

    map_path: Path
    provider_path: Path


def new_provider(
    id: str, group: str, registry: Registry, *, package: str | None = None, maps: Path | None = None
) -> Scaffold:
    """Writes a candidate map of a group and its provider file: both or none.

    Raises KernelmapError for an unknown group, a taken or malformed id, and places that cannot be written.
    """
    contract = contract_of(group, registry)
    check_id(id, "id")
    name, folder = package_folder(package)
    map_folder = folder_for(maps, shipped_maps() if name == OURS else folder / "kernel_maps")
    map_path, provider_path = map_folder / f"{id}.json", folder / f"{id}.py"
    refuse_taken(id, (map_path, provider_path), registry.sources[id].name if id in registry.maps else "")
    reference = schema_reference("kernel_map", map_path, name)
    write_all(
        {provider_path: _provider_text(id, contract), map_path: _map_text(id, name, contract, registry, reference)}
    )
    return Scaffold(map_path, provider_path)


def _provider_text(id: str, contract: Contract) -> str:
    signature = ", ".join(
        f"{port.name}: Array | None" if port.optional else f"{port.name}: Array" for port in contract.ports.values()
    )
    given = [port.name for port in (*contract.inputs, *contract.weights, *contract.state)]
    written = [port.name for port in (*(s for s in contract.state if s.access != "read"), *contract.outputs)]
    return _PROVIDER.format(
        id=id,
        group=contract.equivalence_group,
        summary=f"{id}: a provider of op {contract.op}.",
        oracle=contract.oracle,
        signature=signature,
        given=", ".join(f'"{name}": {name}' for name in given),
        writes="\n".join(f'        {name}[...] = made["{name}"]' for name in written),
    )


def _map_text(id: str, package: str, contract: Contract, registry: Registry, reference: dict[str, str]) -> str:
    ladder = registry.ladders.get(contract.equivalence_group, ())
    priority = max((item.selection.priority for item in ladder), default=95) + 5
    phases = sorted({phase.value for item in ladder for phase in item.selection.phases}) or ["decode", "prefill"]
    value = {
        **reference,
        "schema_version": 1,
        "id": id,
        "op": contract.op,
        "summary": "Scaffolded provider: say in one sentence how it works.",
        "selection": {
            "status": "candidate",
            "priority": priority,
            "equivalence_group": contract.equivalence_group,
            "phases": phases,
        },
        "requires": {"device": "cpu", "isa": []},
        "impl": {"backend": "numpy", "function": f"{package}.{id}:{id}", "variants": [{"name": "serial"}]},
    }
    return json_text(value)
