"""Whether evidence still covers a provider; runs nothing."""

from __future__ import annotations

from kernelmap.models.evidence import Evidence
from kernelmap.models.kernel_map import KernelMap
from kernelmap.registry import Registry
from kernelmap.source_digests import map_source_digest


def staleness(item: KernelMap, registry: Registry, proof: Evidence | None) -> tuple[str, ...]:
    """Why the evidence does not cover the provider as it is now; empty if it does."""
    if proof is None:
        return ("no evidence",)
    found = []
    if proof.result != "pass":
        found.append("its certificate says fail")
    if proof.contract_digest != registry.contracts[item.selection.equivalence_group].digest:
        found.append("the contract changed")
    if proof.map_digest != item.digest:
        found.append("the map changed")
    if proof.source_digest != map_source_digest(item):
        found.append("the source changed")
    return tuple(found)
