"""``new contract``: a contract and its oracle, from which providers can be scaffolded and proved at once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kernelmap.registry import Registry
from kernelmap.scaffold.files import (
    OURS,
    check_id,
    folder_for,
    json_text,
    package_folder,
    refuse_taken,
    schema_reference,
    write_all,
)
from kernelmap.sources import shipped_maps

_ORACLE = '''"""The oracle of ``{group}``: what its providers must compute, written to be read.

Scaffolded: y = x * weight, element by element. An oracle is plain numpy, one operation after the other, each rounded
as the contract says; it imports no kernel.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from kernelmap.spec import BuildSpec

Array = np.ndarray[Any, Any]


def {op}(spec: BuildSpec, *, x: Array, weight: Array) -> dict[str, Array]:
    """Outputs by port. ``x`` is fp32 [R, H], ``weight`` fp32 [H]; ``y`` is fp32 [R, H].

    A row that the contract refuses is reported by a ValueError with an attribute ``row``.
    """
    return {{"y": x * weight}}
'''


@dataclass(frozen=True, slots=True)
class ContractScaffold:
    """Two files that were written."""

    contract_path: Path
    oracle_path: Path


def new_contract(
    group: str, registry: Registry, *, op: str | None = None, package: str | None = None, maps: Path | None = None
) -> ContractScaffold:
    """Writes a contract of a new equivalence group and its oracle: both or none.

    ``op`` is the operation that it fixes (default: the group's name). ``maps`` is the folder of maps, whose folder
    ``contracts`` takes the file. Raises KernelmapError for a taken or malformed name, and for places that cannot be
    written.
    """
    op = op or group
    check_id(group, "group")
    check_id(op, "op")
    name, folder = package_folder(package)
    map_folder = folder_for(maps, shipped_maps() if name == OURS else folder / "kernel_maps")
    contract_path = map_folder / "contracts" / f"{group}.json"
    inside = ("reference", group) if name == OURS else (f"{group}_oracle",)
    oracle_path = folder.joinpath(*inside).with_suffix(".py")
    declared = registry.contract_sources[group].name if group in registry.contracts else ""
    refuse_taken(group, (contract_path, oracle_path), declared)
    value = {
        **schema_reference("contract", contract_path, name),
        "schema_version": 1,
        "equivalence_group": group,
        "op": op,
        "summary": "Scaffolded contract: y = x * weight. Say in one sentence what every provider must compute.",
        "dims": {"R": "tokens", "H": "width"},
        "dynamic_dims": ["R"],
        "inputs": [{"name": "x", "dtype": "fp32", "shape": ["R", "H"]}],
        "weights": [{"name": "weight", "dtype": "fp32", "shape": ["H"]}],
        "outputs": [{"name": "y", "dtype": "fp32", "shape": ["R", "H"]}],
        "arithmetic": {"product": "fp32, rounded once"},
        "equivalence": {"kind": "byte_exact"},
        "oracle": f"{'.'.join((name, *inside))}:{op}",
    }
    write_all({oracle_path: _ORACLE.format(group=group, op=op), contract_path: json_text(value)})
    return ContractScaffold(contract_path, oracle_path)
