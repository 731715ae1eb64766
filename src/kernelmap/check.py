"""Checking files: one, a folder, or everything that is shipped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from kernelmap.circuit.loading import CircuitFile, circuit_paths, circuit_problems, read_circuit
from kernelmap.contracts import contract_problems
from kernelmap.errors import Diagnostic, KernelmapError, Severity, errors_in
from kernelmap.jsonsource import JsonSource, read_json
from kernelmap.map_checks import lints, missing_functions
from kernelmap.models.bench import BenchRecord
from kernelmap.models.contract import Contract
from kernelmap.models.evidence import Evidence
from kernelmap.models.foreign_report import ForeignAudit, ForeignImport
from kernelmap.models.host import Host
from kernelmap.models.inventory import Inventory
from kernelmap.models.kernel_map import KernelMap
from kernelmap.models.loading import validate
from kernelmap.models.lock import Lock
from kernelmap.models.plan import Plan
from kernelmap.models.policy import Policy
from kernelmap.registry import Registry, read_registry
from kernelmap.sources import json_files
from kernelmap.staleness import staleness

_KINDS: tuple[tuple[str, frozenset[str]], ...] = (
    ("kernel_map", frozenset({"impl", "selection"})),
    ("contract", frozenset({"oracle", "outputs"})),
    ("circuit", frozenset({"blocks", "architectures"})),
    ("evidence", frozenset({"corpus_digest"})),
    ("bench", frozenset({"cases", "providers", "toolchain"})),
    ("plan", frozenset({"decisions"})),
    ("lock", frozenset({"circuits", "hosts", "maps"})),
    ("foreign_import", frozenset({"imported", "unselected", "registries"})),
    ("foreign_audit", frozenset({"ladders", "findings"})),
    ("inventory", frozenset({"tensors", "architecture"})),
    ("host", frozenset({"isa", "cores"})),
    ("policy", frozenset({"routes", "exclude", "pin", "kill_switches"})),
)
_PLAIN: dict[str, type[BaseModel]] = {
    "foreign_import": ForeignImport, "foreign_audit": ForeignAudit,
    "bench": BenchRecord, "evidence": Evidence, "plan": Plan, "lock": Lock, "inventory": Inventory, "host": Host,
    "policy": Policy,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Checked:
    """What was checked, and every problem and warning."""

    maps: int
    contracts: int
    circuits: int
    others: int
    problems: tuple[Diagnostic, ...]


def check_all(maps: Sequence[Path] = (), circuits: Sequence[Path] = ()) -> Checked:
    """Checks the shipped registry and circuits, those of provider packages, and further folders."""
    loaded = read_registry(maps)
    problems = [*loaded.problems, *_functions(loaded.registry.maps.values(), loaded.registry)]
    files, wrong = _circuits(circuit_paths(circuits).values(), loaded.registry)
    problems += wrong
    if not errors_in(problems):
        problems += _lints(loaded.registry, files)
    registry = loaded.registry
    return Checked(len(registry.maps), len(registry.contracts), len(files), 0, tuple(problems))


def check_paths(paths: Sequence[Path], maps: Sequence[Path] = (), circuits: Sequence[Path] = ()) -> Checked:
    """Checks files and folders against the whole registry; only problems of these files are returned."""
    kinds, problems = _kinds(file for path in paths for file in _files(path))
    folders = {_map_folder(file, kind) for file, kind in kinds.items() if _in_registry(file, kind)}
    registry, found = _of_registry(kinds, (*maps, *sorted(folders)))
    problems += found
    files, wrong = _circuits((file for file, kind in kinds.items() if kind == "circuit"), registry)
    problems += wrong
    for file, kind in kinds.items():
        if kind in _PLAIN:
            problems += _plain(file, _PLAIN[kind])
        elif kind == "contract" and not _in_registry(file, kind):
            problems += _loose_contract(file)
    if not errors_in(problems):
        every, _ = _circuits(circuit_paths(circuits).values(), registry)
        mine = {str(file.resolve()) for file, kind in kinds.items() if kind == "kernel_map"}
        problems += _about(mine, _lints(registry, [*every, *files]) if mine else ())
    count = list(kinds.values()).count
    others = sum(kind in _PLAIN for kind in kinds.values())
    return Checked(count("kernel_map"), count("contract"), count("circuit"), others, tuple(dict.fromkeys(problems)))


def _kinds(files: Iterable[Path]) -> tuple[dict[Path, str], list[Diagnostic]]:
    """Kind of each file; files that cannot be read or are none of ours are reported, all of them."""
    kinds: dict[Path, str] = {}
    problems: list[Diagnostic] = []
    for file in files:
        try:
            kinds[file] = kind_of(file)
        except KernelmapError as error:
            problems.extend(error.diagnostics)
    return kinds, problems


def _of_registry(kinds: Mapping[Path, str], maps: Sequence[Path]) -> tuple[Registry, list[Diagnostic]]:
    """The registry with the files' folders, and the problems of the maps, contracts and evidence among the files."""
    loaded = read_registry(maps)
    registry = loaded.registry
    wanted = {str(file.resolve()) for file, kind in kinds.items() if kind in ("kernel_map", "contract", "evidence")}
    own = [item for item in registry.maps.values() if str(Path(registry.sources[item.id].name).resolve()) in wanted]
    return registry, [*_about(wanted, loaded.problems), *_functions(own, registry)]


def _about(files: Set[str], problems: Iterable[Diagnostic]) -> list[Diagnostic]:
    """The problems that lie in some of the (resolved) files."""
    return [item for item in problems if item.place and str(Path(item.place.file).resolve()) in files]


def kind_of(path: Path) -> str:
    """The kind of a file, from its ``$schema`` or else its keys. Raises KernelmapError if it is none of ours."""
    source = read_json(path)
    named = str(source.value.get("$schema", "")).rpartition("/")[2].removesuffix(".schema.json")
    kinds = [kind for kind, _ in _KINDS]
    if named in kinds:
        return named
    for kind, keys in _KINDS:
        if keys & source.value.keys() if kind == "policy" else keys <= source.value.keys():
            return kind
    help = f"begin it with $schema; kinds: {', '.join(kinds)}"
    raise KernelmapError(Diagnostic("KM905", "unknown kind of file", place=source.place(""), help=help))


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    folders = [path, path / "contracts", path / "evidence", path / "benchmarks"]
    return [file for folder in folders for file in json_files(folder)]


def _map_folder(file: Path, kind: str) -> Path:
    return file.resolve().parent.parent if kind == "contract" else file.parent


def _in_registry(file: Path, kind: str) -> bool:
    """Whether the file is read with its folder; a contract belongs into a folder named contracts."""
    return kind == "kernel_map" or (kind == "contract" and file.resolve().parent.name == "contracts")


def _loose_contract(file: Path) -> list[Diagnostic]:
    try:
        source = read_json(file)
        return contract_problems(validate(source, Contract), source)
    except KernelmapError as error:
        return list(error.diagnostics)


def _functions(maps: Iterable[KernelMap], registry: Registry) -> list[Diagnostic]:
    return [problem for item in maps for problem in missing_functions(item, registry.sources[item.id])]


def _circuits(paths: Iterable[Path], registry: Registry) -> tuple[list[CircuitFile], list[Diagnostic]]:
    files: list[CircuitFile] = []
    problems: list[Diagnostic] = []
    for path in paths:
        try:
            item = read_circuit(str(path.resolve()))
        except KernelmapError as error:
            problems.extend(error.diagnostics)
            continue
        files.append(item)
        problems += circuit_problems(item, registry.contracts, registry.maps)
    return files, problems


def _lints(registry: Registry, circuits: Iterable[CircuitFile]) -> list[Diagnostic]:
    routed = frozenset(route.allow for item in circuits for route in item.circuit.routes)
    certified = frozenset(proof.provider for proof in registry.evidence.values() if proof.result == "pass")
    return [
        *lints(registry.maps, registry.ladders, registry.contracts, certified, routed, registry.sources),
        *_stale(registry),
    ]


def _stale(registry: Registry) -> Iterator[Diagnostic]:
    """A warning for each certificate that does not cover its provider as it is now; `audit --strict` refuses those."""
    for name, proof in registry.evidence.items():
        item = registry.maps[name]
        if why := staleness(item, registry, proof):
            place = registry.sources[name].place("/id")
            message = f"the certificate of {name} is stale: {', '.join(why)}"
            yield Diagnostic("KM255", message, Severity.WARNING, place=place, help=f"kernelmap certify {name}")


def _plain(file: Path, model: type[BaseModel]) -> list[Diagnostic]:
    try:
        source: JsonSource = read_json(file)
        validate(source, model)
    except KernelmapError as error:
        return list(error.diagnostics)
    return []
