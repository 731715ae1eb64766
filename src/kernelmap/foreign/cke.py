"""Reading a folder of C-Kernel-Engine's kernel maps, of whatever vintage: every file ends in exactly one list."""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kernelmap.errors import Diagnostic, KernelmapError, Place, nearest
from kernelmap.foreign.cke_map import (
    ENGINE,
    foreign_map,
    has_selection,
    identifier,
    identity_problems,
    selection_problems,
)
from kernelmap.foreign.fields import Fields
from kernelmap.jsonsource import JsonSource, read_json
from kernelmap.models.audit import AuditFinding
from kernelmap.models.foreign_report import FailedFile, ForeignImport, ImportedMap, ReadMap, RegistryFile
from kernelmap.models.kernel_map import KernelMap
from kernelmap.models.loading import validate
from kernelmap.render import to_json

Progress = Callable[[str, int, int], None]
"""Called with the file at hand, how many are done, and of how many."""


@dataclass(frozen=True, slots=True)
class Imported:
    """The foreign maps, the record of every file, and the problems of those that failed, placed in them."""

    maps: tuple[KernelMap, ...]
    report: ForeignImport
    problems: tuple[Diagnostic, ...]


def import_cke(folder: Path, groups: Mapping[str, str] | None = None, progress: Progress | None = None) -> Imported:
    """Reads every JSON file that lies in ``folder`` itself; folders in it are not entered.

    ``groups`` gives equivalence groups of this registry for foreign ones: the caller's claim that they mean the same
    arithmetic, which makes the maps appear, rejected, beside ours. A file that cannot be read is a problem of the
    result. Raises KernelmapError for a folder that cannot be read (KM216, KM002) and for correspondences with groups
    that no map has (KM854).
    """
    files, skipped = _entries(folder)
    reader = _Reader(dict(groups or {}))
    for done, path in enumerate(files):
        if progress is not None:
            progress(path.name, done, len(files))
        reader.read(path)
    reader.refuse_twins()
    reader.demand_groups()
    report = ForeignImport(
        engine=ENGINE,
        files=len(files),
        imported=tuple(reader.imported),
        unselected=tuple(reader.unselected),
        registries=tuple(reader.registries),
        failed=tuple(sorted(reader.failed, key=lambda item: item.file)),
        skipped=tuple(skipped),
    )
    return Imported(tuple(reader.maps.values()), report, tuple(reader.problems))


def _entries(folder: Path) -> tuple[list[Path], list[str]]:
    if not folder.is_dir():
        message = f"no such folder of maps: {folder}"
        raise KernelmapError(Diagnostic("KM216", message, help="give a folder that exists"))
    try:
        entries = sorted(folder.iterdir(), key=lambda path: path.name)
    except OSError as error:
        message = f"cannot read {folder}: {error.strerror or error}"
        raise KernelmapError(Diagnostic("KM002", message, place=Place(str(folder)))) from None
    files = [path for path in entries if path.suffix.lower() == ".json" and not path.is_dir()]
    return files, [_printable(path.name) for path in entries if path not in set(files)]


@dataclass(slots=True)
class _Reader:
    groups: dict[str, str]
    maps: dict[str, KernelMap] = field(default_factory=dict)
    imported: list[ImportedMap] = field(default_factory=list)
    unselected: list[ReadMap] = field(default_factory=list)
    registries: list[RegistryFile] = field(default_factory=list)
    failed: list[FailedFile] = field(default_factory=list)
    problems: list[Diagnostic] = field(default_factory=list)
    _given: dict[str, list[tuple[Path, JsonSource]]] = field(default_factory=dict)
    """Id to the files that give it."""

    def read(self, path: Path) -> None:
        try:
            self._file(path, _read(path))
        except KernelmapError as error:
            self._fail(path, error.diagnostics)

    def _fail(self, path: Path, problems: Sequence[Diagnostic]) -> None:
        self.problems += problems
        findings = tuple(_finding(item, path) for item in problems)
        self.failed.append(FailedFile(file=_printable(path.name), problems=findings))

    def _file(self, path: Path, source: JsonSource) -> None:
        fields = Fields(source.value)
        digest = "sha256:" + hashlib.sha256(source.text.encode("utf-8")).hexdigest()
        name = _printable(path.name)
        if not fields.has("op") and not fields.has("impl"):
            entries = _registry_entries(fields.value)
            if not entries:
                help = "a map has an op and an impl; a registry has lists or tables of kernels"
                place = source.place("")
                raise KernelmapError(Diagnostic("KM850", "neither map nor registry", place=place, help=help))
            self.registries.append(RegistryFile(file=name, digest=digest, entries=entries))
            return
        problems = identity_problems(fields, source)
        if has_selection(fields):
            problems += selection_problems(fields, source)
        if problems:
            raise KernelmapError(problems)
        foreign_id = fields.get("id")
        self._given.setdefault(identifier(foreign_id), []).append((path, source))
        made = self._map(fields, path) if has_selection(fields) else None
        if made is None:
            fields.carry("id")
            fields.carry("op")
        facts: dict[str, Any] = {
            "file": name, "foreign_id": foreign_id, "op": fields.get("op"), "digest": digest,
            "other_name": path.stem != foreign_id, "not_carried": fields.left(),
        }  # fmt: skip
        if made is None or made.foreign is None:
            self.unselected.append(ReadMap(**facts))
            return
        self.maps[made.id] = made
        group, theirs = made.selection.equivalence_group, made.foreign.equivalence_group
        self.imported.append(ImportedMap(**facts, id=made.id, equivalence_group=group, foreign_group=theirs))

    def refuse_twins(self) -> None:
        """Of files that give one id none is taken: which of them the other engine would load, nothing says."""
        twins = {made: files for made, files in self._given.items() if len(files) > 1}
        lost = {_printable(path.name) for files in twins.values() for path, _ in files}
        self.imported = [item for item in self.imported if item.file not in lost]
        self.unselected = [item for item in self.unselected if item.file not in lost]
        for made, files in twins.items():
            self.maps.pop(made, None)
            for path, source in files:
                others = ", ".join(_printable(other.name) for other, _ in files if other != path)
                message = f"id {source.value['id']!r} is given by {len(files)} files"
                problem = Diagnostic("KM852", message, place=source.place("/id"), help=f"also by {others}")
                self._fail(path, [problem])

    def _map(self, fields: Fields, path: Path) -> KernelMap:
        value = foreign_map(fields, self.groups)
        return validate(made_source(value, str(path)), KernelMap)

    def demand_groups(self) -> None:
        known = {item.foreign_group for item in self.imported}
        lost = [
            Diagnostic("KM854", f"no imported map is of group {name!r}", near=nearest(name, known))
            for name in self.groups
            if name not in known
        ]
        if lost:
            raise KernelmapError(lost)


def made_source(value: Mapping[str, Any], name: str) -> JsonSource:
    """A source of a value that was made here, to validate it as a file would be."""
    import json

    return JsonSource(name, json.dumps(value))


def _read(path: Path) -> JsonSource:
    """As `read_json`, but refuses what is no regular file: opening a pipe would wait for ever."""
    try:
        regular = stat.S_ISREG(path.stat().st_mode)
        reason = "" if regular else "no regular file"
    except OSError as error:  # a link to nothing, or a circle of links
        reason = error.strerror or str(error)
    if reason:
        raise KernelmapError(Diagnostic("KM002", f"cannot read {path}: {reason}", place=Place(str(path))))
    return read_json(path)


def _registry_entries(value: Mapping[str, Any]) -> int:
    """Items of the lists and tables at the top of a file that is no map."""
    tables: Sequence[Any] = [item for item in value.values() if isinstance(item, (list, dict))]
    return sum(len(item) for item in tables)


def _finding(item: Diagnostic, path: Path) -> AuditFinding:
    """A problem as the report keeps it: by the file's name alone, so that a report says nothing of the machine."""
    place = replace(item.place, file=path.name) if item.place is not None else None
    message = item.message.replace(str(path), path.name)
    value = to_json(replace(item, place=place, message=message))
    return AuditFinding.model_validate({**value, "near": tuple(value["near"])})


def _printable(name: str) -> str:
    """A file name that can be written in UTF-8; other bytes in it are shown as replacement characters."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
