"""Bench records: made, read, cut to one group, and what they say about priorities. Imports no kernel and no numpy."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from kernelmap.bench.ratios import Ratio, ratio
from kernelmap.errors import Diagnostic, KernelmapError, Severity
from kernelmap.jsonsource import read_json
from kernelmap.models.bench import BenchCase, BenchHost, BenchProvider, BenchRecord
from kernelmap.models.host import Host
from kernelmap.models.loading import validate
from kernelmap.models.policy import Policy
from kernelmap.registry import Registry
from kernelmap.source_digests import map_source_digest
from kernelmap.toolchain import toolchain

ISA_PATHS = ("neon", "avx512vnni", "avxvnni", "avx2")
"""Telling features of the ISA paths of certificates, the highest first."""
PORTABLE = "portable"


def isa_path(isa: Iterable[str]) -> str:
    """The highest ISA path of certificates that a host with these features takes."""
    features = set(isa)
    return next((name for name in ISA_PATHS if name in features), PORTABLE)


def make_record(
    cases: Iterable[BenchCase], target: str, registry: Registry, host: Host, policy: Policy
) -> BenchRecord:  # fmt: skip
    """The record of measured cases, with the digests of all that they rest on."""
    cases = tuple(cases)
    groups = sorted({case.group for case in cases})
    timed = sorted({item.provider for case in cases for item in case.times})
    providers = {
        name: BenchProvider(
            status=registry.maps[name].selection.status,
            priority=registry.maps[name].selection.priority,
            map_digest=registry.maps[name].proved_digest,
            source_digest=map_source_digest(registry.maps[name]),
        )
        for name in timed
    }
    return BenchRecord(
        schema_version=1,
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        target=target,
        host=BenchHost(
            name=host.name, arch=host.arch, cpu=host.cpu, cores=host.cores, isa=tuple(host.isa), path=isa_path(host.isa)
        ),
        toolchain=toolchain(),
        policy=policy,
        contracts={name: registry.contracts[name].digest for name in groups},
        providers=providers,
        cases=cases,
    )


def read_record(path: Path) -> BenchRecord:
    """A bench record. Raises KernelmapError with every problem of the file, and its place."""
    return validate(read_json(path), BenchRecord)


def record_text(record: BenchRecord, schema: str | None = None) -> str:
    """The JSON text of a record; ``schema`` is the path of the JSON Schema that ``$schema`` names."""
    value = record.model_dump(mode="json", by_alias=True)
    value["$schema"] = schema
    value["policy"].pop("$schema", None)
    return json.dumps({key: item for key, item in value.items() if item is not None}, indent=1) + "\n"


def of_group(record: BenchRecord, group: str) -> BenchRecord:
    """The part of a record that is about one group."""
    cases = tuple(case for case in record.cases if case.group == group)
    timed = {item.provider for case in cases for item in case.times}
    return record.model_copy(
        update={
            "cases": cases,
            "contracts": {name: value for name, value in record.contracts.items() if name == group},
            "providers": {name: value for name, value in record.providers.items() if name in timed},
        }
    )


def ratio_in(case: BenchCase, provider: str, base: str) -> Ratio | None:
    """How long a provider takes in units of another; None if either was not timed in the case."""
    mine, other = case.of(provider), case.of(base)
    return ratio(mine.seconds, other.seconds) if mine is not None and other is not None else None


def case_text(case: BenchCase) -> str:
    """``prefill E=256 H=2048 R=8, 2 threads``."""
    sizes = " ".join(f"{name}={size}" for name, size in sorted(case.dims.items()))
    return f"{case.phase.value} {sizes}, {case.threads} thread{'' if case.threads == 1 else 's'}"


def disagreements(record: BenchRecord) -> Iterator[Diagnostic]:
    """A warning for each pair of providers of which the one of lower priority is faster, beyond noise, in some case."""
    found: dict[tuple[str, str, str], list[tuple[Ratio, BenchCase]]] = {}
    met: dict[tuple[str, str], int] = {}
    ranks: Mapping[str, int] = {name: item.priority for name, item in record.providers.items()}
    for case in record.cases:
        names = sorted((item.provider for item in case.times), key=lambda name: -ranks[name])
        for index, high in enumerate(names):
            for low in names[index + 1 :]:
                met[high, low] = met.get((high, low), 0) + 1
                between = ratio_in(case, high, low)
                if between is not None and between.slower:
                    found.setdefault((high, low, case.group), []).append((between, case))
    for (high, low, group), slow in found.items():
        worst, case = max(slow, key=lambda pair: pair[0].median)
        told = (f"{name} ({record.providers[name].status.value} {ranks[name]})" for name in (high, low))
        message = (
            f"{' ranks above '.join(told)}, and takes {worst} times as long at {case_text(case)}; "
            f"slower beyond noise in {len(slow)} of {met[high, low]} cases"
        )
        help = f"group {group}: change a priority, give a variant guard, or leave it where other shapes matter more"
        yield Diagnostic("KM584", message, Severity.WARNING, help=help)


def refusals(record: BenchRecord) -> Iterator[Diagnostic]:
    """An error for each provider that was not timed because it could not be bound or gave other outputs."""
    found: dict[str, list[tuple[str, BenchCase]]] = {}
    for case in record.cases:
        for name, why in case.refused.items():
            found.setdefault(name, []).append((why, case))
    for name, places in found.items():
        why, case = places[0]
        more = f" (and in {len(places) - 1} more case{'' if len(places) == 2 else 's'})" if len(places) > 1 else ""
        yield Diagnostic("KM582", f"{name} was not timed at {case_text(case)}{more}: {why}")


def not_beyond(host: Host, machine: Host) -> None:
    """Raises KernelmapError (KM581) if a profile has features that this machine lacks: nothing could be measured."""
    missing = sorted(set(host.isa) - set(machine.isa))
    if missing or host.arch != machine.arch:
        what = f"it lacks {', '.join(missing)}" if missing else f"it is {machine.arch}, not {host.arch}"
        message = f"this machine cannot measure for {host.name}: {what}"
        raise KernelmapError(Diagnostic("KM581", message, help="measure on such a machine"))
