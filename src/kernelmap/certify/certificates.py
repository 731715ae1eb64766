"""Certificates: made by running the corpus, stored as evidence, checked for staleness without running anything."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from kernelmap.certify.corpus import Case, cases_of
from kernelmap.certify.trial import PATTERNS, Fault, Subject, compare
from kernelmap.errors import BindError, Diagnostic, KernelmapError
from kernelmap.files import write_whole
from kernelmap.host import load_host
from kernelmap.map_checks import not_executable
from kernelmap.models.contract import Contract
from kernelmap.models.evidence import Evidence
from kernelmap.models.host import Host
from kernelmap.models.kernel_map import DimConstraint, KernelMap, Variant
from kernelmap.registry import Registry
from kernelmap.source_digests import installed_sources, map_source_digest
from kernelmap.toolchain import toolchain
from kernelmap.vocabulary import Status

PATHS: Mapping[str, str | None] = {
    "portable": None,
    "avx2": "avx2_2core",
    "avxvnni": "avx_vnni_client",
    "avx512vnni": "avx512_vnni_server",
    "neon": "neoverse_v2_server",
}
"""ISA paths that a provider may choose between, named by their telling feature, with the profile that defines each."""
THREADS = (1, 2, 3, 8)
Report = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """A certificate, or the faults that forbid one."""

    evidence: Evidence | None
    faults: tuple[Fault, ...]


def certify(
    item: KernelMap, registry: Registry, host: Host, *, seed: int = 7, most: int = 8, report: Report | None = None
) -> Outcome:
    """Runs every variant on every ISA path that this host has, over the corpus, against the oracle and its group.

    Every other provider in production that takes a case runs it, too, and may differ by the contract's equivalence; a
    tolerance counts twice: each may lie on its own side of the oracle. Deterministic corpus for a seed. Stops at the
    first faulty case. Raises KernelmapError if the provider cannot be loaded, or if no case fits it.
    """
    if not item.executable:
        raise KernelmapError(not_executable(item, registry.sources.get(item.id)))
    started = time.perf_counter()
    contract = registry.contracts[item.selection.equivalence_group]
    paths, missing = isa_paths(item, host)
    corpus = hashlib.sha256()
    cases, worst = 0, 0.0
    plan = [(path, variant) for path in paths for variant in item.impl.variants if _fits(variant, paths[path])]
    faults = tuple(Fault("boundary", 0, text) for text in boundary_faults(item, contract))
    for step, (path, variant) in enumerate(plan):
        if report is not None:
            report(f"{item.id} {variant.name} {path}", step, len(plan))
        for case in cases_of(contract, item, variant, seed, paths[path], most):
            found, error = _case_faults(item, variant, case)
            found = found or _group_faults(item, variant, case, registry, paths[path])
            faults += tuple(Fault(f"{path} {variant.name} {f.case}", f.threads, f.text) for f in found)
            if faults:
                return Outcome(None, faults)
            _add(corpus, case)
            cases, worst = cases + 1, max(worst, error)
    if cases == 0:
        raise KernelmapError(Diagnostic("KM561", f"{item.id}: no small shape fits its contract and constraints"))
    evidence = Evidence(
        schema_version=1,
        schema_ref="../../src/kernelmap/schemas/evidence.schema.json",
        provider=item.id,
        contract_digest=contract.digest,
        map_digest=item.proved_digest,
        source_digest=map_source_digest(item),
        reference_digest=installed_sources().oracle_digest(contract),
        corpus_digest="sha256:" + corpus.hexdigest(),
        host=f"{host.arch} {host.cpu}, {host.cores} cores",
        isa_paths=tuple(paths),
        not_run=missing,
        toolchain=toolchain(),
        cases=cases,
        worst_error=worst,
        seconds=round(time.perf_counter() - started, 2),
        result="pass",
    )
    return Outcome(evidence, ())


def _fits(variant: Variant, isa: tuple[str, ...]) -> bool:
    return set(variant.requires) <= set(isa)


def _case_faults(item: KernelMap, variant: Variant, case: Case) -> tuple[tuple[Fault, ...], float]:
    expected = case.expected()
    subject = Subject(item, variant, case)
    worst = 0.0
    for threads in THREADS:
        trial = subject.trial(expected, threads)
        if trial.faults:
            return trial.faults, worst
        worst = max(worst, trial.worst_error)
    return (), worst


def _group_faults(
    item: KernelMap, variant: Variant, case: Case, registry: Registry, isa: tuple[str, ...]
) -> tuple[Fault, ...]:  # fmt: skip
    """What the other providers of the group give for a case where it differs from what this one gives."""
    subject, found = Subject(item, variant, case), []
    status, outputs, _ = subject.call(1, PATTERNS[0])
    for other in registry.ladders[item.selection.equivalence_group]:
        beside = next((v for v in other.impl.variants if _fits(v, isa) and _admits(v, case.dims)), None)
        if other.id == item.id or beside is None or not _takes(other, case.dims, isa):
            continue
        spec = replace(case.spec, provider=other.id, variant=beside.name, prepared=_prepared(other))
        try:
            theirs, made, _ = Subject(other, beside, replace(case, spec=spec)).call(1, PATTERNS[0])
        except BindError:  # what cannot be loaded here (an extra is missing) serves nobody here
            continue
        if theirs != status:
            found.append(Fault(case.label, 1, f"status {status}, and {other.id} says {theirs}"))
        elif status == 0:
            differing = compare(case.contract, made, outputs, sides=2)[1]
            found += [Fault(case.label, 1, f"unlike {other.id}: {text}") for text in differing]
    return tuple(found)


def _admits(variant: Variant, dims: Mapping[str, int]) -> bool:
    return all(dims[dim] >= bound if side == "min" else dims[dim] <= bound for dim, side, bound in variant.guards)


def _takes(other: KernelMap, dims: Mapping[str, int], isa: tuple[str, ...]) -> bool:
    """Whether a provider is eligible for these dims in some phase.

    One not in production needs a route and may be wrong: it does not stand in the way of others.
    """
    limits = other.constraints.dims.items()
    return (
        other.executable
        and other.selection.status is Status.PRODUCTION
        and set(other.requires.isa) <= set(isa)
        and not any(limit.refusal(name, dims[name]) for name, limit in limits)
    )


def _prepared(item: KernelMap) -> dict[str, str]:
    return {port: hook.prepared_format for hook in item.weight_preparation for port in hook.weights}


def _add(corpus: hashlib._Hash, case: Case) -> None:
    corpus.update(case.label.encode())
    for name, array in case.arrays.items():
        corpus.update(name.encode() + (array.tobytes() if array is not None else b"absent"))


def isa_paths(item: KernelMap, host: Host) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
    """(path to features, for those that this host can run; names of the paths that it cannot)."""
    runs: dict[str, tuple[str, ...]] = {}
    missing: list[str] = []
    for name, profile in PATHS.items():
        features = load_host(profile).isa if profile is not None else ()
        relevant = tuple(feature for feature in features if feature in host.isa)
        if profile is not None and name not in host.isa:
            missing.append(name)
        elif set(item.requires.isa) <= set(relevant):
            runs[name] = relevant
    return runs, tuple(missing)


def boundary_faults(item: KernelMap, contract: Contract) -> Iterator[str]:
    """Every declared constraint accepts the value just inside and refuses the one just outside."""
    for name, limit in item.constraints.dims.items():
        for inside, outside in _edges(limit):
            if inside is not None and limit.refusal(name, inside):
                yield f"{name} = {inside} lies inside its constraint and is refused"
            if outside is not None and not limit.refusal(name, outside):
                yield f"{name} = {outside} lies outside its constraint and is accepted"
    for variant in item.impl.variants:
        for dim, side, bound in variant.guards:
            dims = dict.fromkeys(contract.dims, 1) | {d: b for d, _, b in variant.guards}
            outside = bound - 1 if side == "min" else bound + 1
            if not variant.admits(dims):
                yield f"variant {variant.name} refuses its own bounds"
            elif outside >= 0 and variant.admits({**dims, dim: outside}):
                yield f"variant {variant.name} admits {dim} = {outside}"


def _edges(limit: DimConstraint) -> Iterator[tuple[int | None, int | None]]:
    step = limit.multiple_of or 1
    low = -(-(limit.min or 0) // step) * step
    if limit.min is not None:
        yield low, low - step if low >= step else None
    if limit.max is not None:
        high = limit.max // step * step
        yield high, high + step
    if limit.multiple_of is not None and limit.multiple_of > 1:
        yield low or step, (low or step) + 1


def write_evidence(evidence: Evidence, folder: Path) -> Path:
    """Writes ``<provider>.json`` whole or not at all. Raises KernelmapError if the folder cannot be written."""
    path = folder / f"{evidence.provider}.json"
    value = evidence.model_dump(mode="json", by_alias=True)
    write_whole(json.dumps(value, indent=2) + "\n", path, "KM562")
    return path
