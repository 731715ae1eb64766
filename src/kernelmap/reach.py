"""Which variants of a map some call can run: guards against the dims that a circuit can have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product

from kernelmap.circuit.instances import SharedOp
from kernelmap.models.circuit import Circuit
from kernelmap.models.kernel_map import KernelMap
from kernelmap.vocabulary import Phase

Range = tuple[int, int]
"""Least and greatest value of a dim, both included."""
_MANY = 2**62


def token_dim(circuit: Circuit) -> str | None:
    """The dynamic dim that counts a call's tokens: the only one that inputs begin with; None if there are several."""
    first = {str(item.shape[0]) for item in circuit.inputs if item.shape} & set(circuit.dynamic_dims)
    return next(iter(first)) if len(first) == 1 else None


def ranges(shared: SharedOp, phase: Phase, circuit: Circuit) -> dict[str, Range]:
    """What each dim of an op can be: tokens are one in decode, and at most a chunk in prefill."""
    tokens = token_dim(circuit)
    found = {name: (size, size) for name, size in shared.dims.items()}
    for name, size in shared.dynamic.items():
        if isinstance(size, int):
            found[name] = (size, size)
        elif size == tokens:
            found[name] = (1, 1) if phase is Phase.DECODE else (1, circuit.runtime.prefill_chunk)
        else:
            found[name] = (0, _MANY)
    return found


def reached(item: KernelMap, dims: Mapping[str, Range], features: frozenset[str]) -> frozenset[str]:
    """Names of the variants that run for some dims in these ranges on a host with these features.

    The first listed one whose needs and guards hold runs. Guards are bounds, so only the ends of the ranges and the
    values next to each bound can tell variants apart: trying those is exact. Kill switches are taken as not set.
    """
    variants = [variant for variant in item.impl.variants if features.issuperset(variant.requires)]
    bounds: dict[str, set[int]] = {}
    for variant in variants:
        for dim, _, bound in variant.guards:
            bounds.setdefault(dim, set()).add(bound)
    names = sorted(bounds)
    found = set()
    for values in product(*(sorted(_telling(dims[name], bounds[name])) for name in names)):
        point = dict(zip(names, values, strict=True))
        found.add(next(variant.name for variant in variants if variant.admits(point)))
    return frozenset(found)


def _telling(span: Range, bounds: set[int]) -> set[int]:
    low, high = span
    return {low, high, *(value for value in _around(bounds) if low <= value <= high)}


def _around(bounds: set[int]) -> Iterator[int]:
    for bound in bounds:
        yield from (bound - 1, bound, bound + 1)
