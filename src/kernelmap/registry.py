"""The registry: maps, contracts and evidence, loaded, checked and frozen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from pydantic import BaseModel

from kernelmap.collection import collection_paused
from kernelmap.contracts import contract_problems, expansions
from kernelmap.errors import Diagnostic, KernelmapError, errors_in
from kernelmap.jsonsource import JsonSource, read_json
from kernelmap.map_checks import map_problems, rank_problems
from kernelmap.models.contract import Contract
from kernelmap.models.evidence import Evidence
from kernelmap.models.kernel_map import KernelMap
from kernelmap.models.loading import validate
from kernelmap.sources import json_files, map_folders

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Registry:
    """Immutable. ``ladders`` holds, for each group, its maps by falling priority."""

    maps: Mapping[str, KernelMap]
    contracts: Mapping[str, Contract]
    ladders: Mapping[str, tuple[KernelMap, ...]]
    evidence: Mapping[str, Evidence]
    sources: Mapping[str, JsonSource] = field(compare=False)
    """Source of each map by id (for places in diagnostics)."""
    contract_sources: Mapping[str, JsonSource] = field(compare=False)
    """Source of each group's contract file."""

    def without(self, ids: Iterable[str]) -> Registry:
        """The same registry without some maps; nothing else changes."""
        gone = set(ids)
        return make_registry(
            [item for item in self.maps.values() if item.id not in gone],
            self.contracts,
            self.evidence,
            self.sources,
            self.contract_sources,
        )

    def with_maps(self, maps: Iterable[KernelMap]) -> Registry:
        """The same registry with some maps replaced or added, unchecked: for what-if questions."""
        merged = {**self.maps, **{item.id: item for item in maps}}
        return make_registry(merged.values(), self.contracts, self.evidence, self.sources, self.contract_sources)


def make_registry(
    maps: Iterable[KernelMap],
    contracts: Mapping[str, Contract],
    evidence: Mapping[str, Evidence] | None = None,
    sources: Mapping[str, JsonSource] | None = None,
    contract_sources: Mapping[str, JsonSource] | None = None,
) -> Registry:
    """A registry of models that were checked before. The order of ``maps`` makes no difference."""
    by_id = {item.id: item for item in sorted(maps, key=lambda item: item.id)}
    ladders: dict[str, list[KernelMap]] = {}
    for item in by_id.values():
        ladders.setdefault(item.selection.equivalence_group, []).append(item)
    for ladder in ladders.values():
        ladder.sort(key=lambda item: (-item.selection.priority, item.id))
    return Registry(
        MappingProxyType(by_id),
        MappingProxyType(dict(sorted(contracts.items()))),
        MappingProxyType({group: tuple(ladder) for group, ladder in sorted(ladders.items())}),
        MappingProxyType(dict(evidence or {})),
        MappingProxyType(dict(sources or {})),
        MappingProxyType(dict(contract_sources or {})),
    )


@dataclass(slots=True)
class Loaded:
    """What reading gave: the registry of all that was sound, and every problem."""

    registry: Registry
    problems: list[Diagnostic]


def load_registry(extra: Sequence[Path] = (), *, shipped: bool = True) -> Registry:
    """The registry of the shipped maps, of provider packages and of ``extra`` folders (each with ``contracts/``).

    Raises KernelmapError with every error of every file.
    """
    loaded = read_registry(extra, shipped=shipped)
    if errors := errors_in(loaded.problems):
        raise KernelmapError(errors)
    return loaded.registry


def read_registry(extra: Sequence[Path] = (), *, shipped: bool = True) -> Loaded:
    """As `load_registry`, but returns the problems instead of raising."""
    with collection_paused():
        return _read(map_folders(extra, shipped=shipped))


def _read(folders: Sequence[Path]) -> Loaded:
    problems: list[Diagnostic] = []
    contracts, contract_sources = _contracts(folders, problems)
    maps: dict[str, KernelMap] = {}
    sources: dict[str, JsonSource] = {}
    for item, source in _files(folders, "", KernelMap, problems):
        if item.id in maps:
            first = sources[item.id].name
            problems.append(_duplicate("KM201", f"map {item.id!r} is declared twice", source, "/id", first))
            continue
        maps[item.id], sources[item.id] = item, source
        problems += map_problems(item, source, contracts)
    problems += rank_problems(maps.values(), sources)
    evidence: dict[str, Evidence] = {}
    for proof, source in _files(folders, "evidence", Evidence, problems):
        if proof.provider not in maps:
            place = source.place("/provider")
            problems.append(Diagnostic("KM218", f"evidence for an unknown provider {proof.provider!r}", place=place))
        else:
            evidence[proof.provider] = proof
    return Loaded(make_registry(maps.values(), contracts, evidence, sources, contract_sources), problems)


def _contracts(
    folders: Sequence[Path], problems: list[Diagnostic]
) -> tuple[dict[str, Contract], dict[str, JsonSource]]:
    contracts: dict[str, Contract] = {}
    sources: dict[str, JsonSource] = {}
    for family, source in _files(folders, "contracts", Contract, problems):
        wrong = contract_problems(family, source)
        problems += wrong
        if wrong:
            continue
        stem = Path(source.name).stem
        if not family.formats and stem != family.equivalence_group:
            place = source.place("/equivalence_group")
            problems.append(
                Diagnostic("KM202", f"group {family.equivalence_group!r} in a file named {stem!r}", place=place)
            )
        for contract in expansions(family):
            group = contract.equivalence_group
            if group in contracts:
                first = sources[group].name
                message = f"group {group!r} has two contracts"
                problems.append(_duplicate("KM213", message, source, "/equivalence_group", first))
                continue
            contracts[group], sources[group] = contract, source
    return contracts, sources


def _files(
    folders: Sequence[Path], part: str, model: type[M], problems: list[Diagnostic]
) -> Iterator[tuple[M, JsonSource]]:
    for folder in folders:
        for path in json_files(folder / part if part else folder):
            try:
                source = read_json(path)
                item = validate(source, model)
            except KernelmapError as error:
                problems.extend(error.diagnostics)
                continue
            yield item, source


def _duplicate(code: str, message: str, source: JsonSource, pointer: str, first: str) -> Diagnostic:
    return Diagnostic(code, message, place=source.place(pointer), help=f"the first is in {first}")
