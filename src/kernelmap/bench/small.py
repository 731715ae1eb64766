"""Shapes for a group: those of circuits that ask for it, or else a made-up one that fits its contract."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

from kernelmap.bench.spots import Spot, general, made_up_spot, shipped_shapes
from kernelmap.contracts import alignment
from kernelmap.models.contract import Contract, Port
from kernelmap.models.policy import Policy
from kernelmap.registry import Registry

_LARGE = 1024
"""About how large the dims of a weight matrix are made."""
_FREE = 16
"""How many matrices a weight is made of, and other sizes that no matrix has."""
_FEW = 4
"""How many of something are chosen: dims of index ports, and those that outputs alone have."""


def group_spots(group: str, registry: Registry, policy: Policy, folders: Iterable[Path], most: int) -> list[Spot]:
    """Up to ``most`` spots of a group, at the dims of circuits that ask for it, or one at made-up dims.

    Raises KernelmapError (KM583) if no made-up dims fit the contract's requirements.
    """
    contract = registry.contracts[group]
    found: list[Spot] = []
    for shared, source in shipped_shapes(group, registry, tuple(folders)):
        found.append(Spot("bench", contract, shared.dims, shared.params, shared.dtypes, source, general(policy)))
        if len(found) == most:
            break
    return found or [_made_up(contract, policy)]


def _made_up(contract: Contract, policy: Policy) -> Spot:
    multiples = alignment(contract)
    sizes = {}
    for name in sorted(contract.static_dims):
        step = multiples.get(name, 1)
        sizes[name] = math.ceil(_about(contract, name) / step) * step
    return made_up_spot(contract, sizes, "made-up dims: no circuit asks for the group", policy)


def _about(contract: Contract, dim: str) -> int:
    if any(_has(port, dim, slice(-2, None)) for port in contract.weights):
        return _LARGE
    if any(_has(port, dim, slice(None)) for port in contract.weights):
        return _FREE
    chosen = any(port.domain is not None and _has(port, dim, slice(None)) for port in contract.inputs)
    given = any(_has(port, dim, slice(None)) for port in contract.inputs)
    return _FREE if given and not chosen else _FEW


def _has(port: Port, dim: str, axes: slice) -> bool:
    return any(not isinstance(item, int) and dim in item.names for item in port.shape[axes])
