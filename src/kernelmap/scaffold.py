"""Scaffolding: a map and a provider file that pass ``check`` and conformance from the start."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from kernelmap.errors import Diagnostic, KernelmapError, nearest
from kernelmap.models.contract import Contract
from kernelmap.registry import Registry
from kernelmap.sources import provider_packages, shipped_maps

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
    contract = registry.contracts.get(group)
    if contract is None:
        near = nearest(group, registry.contracts)
        raise KernelmapError(Diagnostic("KM451", f"no group is called {group!r}", near=near))
    if not id.isidentifier() or not id.islower():
        raise KernelmapError(Diagnostic("KM105", f"id {id!r}: lower case, digits and underscores"))
    name, folder = _package(package)
    map_folder = maps or (shipped_maps() if name == "kernelmap_providers" else folder / "kernel_maps")
    map_path, provider_path = map_folder / f"{id}.json", folder / f"{id}.py"
    taken = [path for path in (map_path, provider_path) if path.exists()]
    if taken or id in registry.maps:
        places = ", ".join(map(str, taken)) or registry.sources[id].name
        raise KernelmapError(Diagnostic("KM903", f"{id} exists already: {places}", help="nothing was written"))
    written: list[Path] = []
    try:
        for path, text in (
            (provider_path, _provider_text(id, contract)),
            (map_path, _map_text(id, name, contract, registry)),
        ):
            _write_new(path, text)
            written.append(path)
    except OSError as error:
        for path in written:
            path.unlink(missing_ok=True)
        message = f"cannot write {error.filename}: {error.strerror}"
        raise KernelmapError(Diagnostic("KM904", message, help="give --package and --maps of your own")) from None
    return Scaffold(map_path, provider_path)


def _package(package: str | None) -> tuple[str, Path]:
    known = {item.name: item for item in provider_packages()}
    name = package or "kernelmap_providers"
    found = known.get(name)
    if found is None or found.folder is None:
        help = f"registered packages: {', '.join(known)}"
        message = f"{name!r} is no registered provider package"
        raise KernelmapError(Diagnostic("KM904", message, near=nearest(name, known), help=help))
    return name, found.folder


def _write_new(path: Path, text: str) -> None:
    """Writes a file that must not exist yet."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)


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


def _map_text(id: str, package: str, contract: Contract, registry: Registry) -> str:
    ladder = registry.ladders.get(contract.equivalence_group, ())
    priority = max((item.selection.priority for item in ladder), default=95) + 5
    phases = sorted({phase.value for item in ladder for phase in item.selection.phases}) or ["decode", "prefill"]
    value = {
        "$schema": "../src/kernelmap/schemas/kernel_map.schema.json",
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
    return json.dumps(value, indent=2) + "\n"
