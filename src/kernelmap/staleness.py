"""Whether evidence still covers a provider; runs nothing."""

from __future__ import annotations

from kernelmap.models.evidence import Evidence
from kernelmap.models.host import Host
from kernelmap.models.kernel_map import KernelMap
from kernelmap.registry import Registry
from kernelmap.source_digests import installed_sources, map_source_digest


def staleness(item: KernelMap, registry: Registry, proof: Evidence | None, host: Host | None = None) -> tuple[str, ...]:
    """Why the evidence does not cover the provider as it is now; empty if it does.

    With a ``host``, an ISA path that it has and that was not run where the certificate was made is not covered either.
    """
    if proof is None:
        return ("no evidence",)
    found = []
    if proof.result != "pass":
        found.append("its certificate says fail")
    contract = registry.contracts[item.selection.equivalence_group]
    if proof.contract_digest != contract.digest:
        found.append("the contract changed")
    if proof.map_digest != item.proved_digest:
        found.append("the map changed")
    if proof.source_digest != map_source_digest(item):
        found.append("the source changed")
    if proof.reference_digest != installed_sources().oracle_digest(contract):
        found.append("the reference changed")
    if host is not None and (paths := [path for path in proof.not_run if path in host.isa]):
        found.append(f"made on a host without {', '.join(paths)}, which this one has")
    return tuple(found)
