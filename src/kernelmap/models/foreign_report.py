"""What an import of foreign maps did with each file, and what the imported maps' own selection comes to."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from kernelmap.models.audit import AuditFinding
from kernelmap.models.base import FileModel, StrictModel
from kernelmap.models.plan import Reason
from kernelmap.vocabulary import Phase, Status

Digest = str


class ReadMap(StrictModel):
    """A file that holds a map. ``digest`` is over its bytes."""

    file: str
    foreign_id: str
    op: str
    digest: Digest
    other_name: bool = Field(default=False, description="The file is not named for the id that it gives.")
    not_carried: tuple[str, ...] = Field(description="JSON pointers of what was left behind, whole subtrees at once.")


class ImportedMap(ReadMap):
    """A map that became a foreign provider here."""

    id: str
    equivalence_group: str
    foreign_group: str


class RegistryFile(StrictModel):
    """A file that lists kernels and is no map itself; nothing of it is carried over."""

    file: str
    digest: Digest
    entries: int = Field(description="Items of its lists and tables.")


class FailedFile(StrictModel):
    """A file that could not be read for certain, with every problem and its place."""

    file: str
    problems: tuple[AuditFinding, ...] = Field(min_length=1)


class ForeignImport(FileModel):
    """Every file of a folder, in exactly one of four lists."""

    schema_version: Literal[1] = 1
    engine: str
    files: int
    imported: tuple[ImportedMap, ...]
    unselected: tuple[ReadMap, ...] = Field(description="Maps without a selection block: never eligible, not written.")
    registries: tuple[RegistryFile, ...]
    failed: tuple[FailedFile, ...]
    skipped: tuple[str, ...] = Field(default=(), description="Entries of the folder that are no JSON files.")


class ForeignCandidate(StrictModel):
    """A map of a foreign group in one phase on one host."""

    id: str
    status: Status
    priority: int
    selected: bool
    reasons: tuple[Reason, ...]
    limits: tuple[str, ...] = Field(
        default=(), description="Limits on dims, and constraints that were not read: it serves within them."
    )


class ForeignLadder(StrictModel):
    """What a foreign group comes to in a phase on a host: one provider, a tie, or a hole."""

    group: str
    phase: Phase
    host: str
    outcome: Literal["provider", "tie", "hole"]
    providers: tuple[str, ...] = Field(description="The selected one; the tied ones; none.")
    candidates: tuple[ForeignCandidate, ...]


class ForeignChange(StrictModel):
    """A difference from an earlier import."""

    kind: Literal["map added", "map removed", "map changed", "choice changed", "group added", "group removed"]
    what: str
    before: str = ""
    after: str = ""


class ForeignAudit(FileModel):
    """What a foreign registry would choose by the rules here. Nothing of it can be run here."""

    schema_version: Literal[1] = 1
    executable: Literal[False] = False
    engine: str
    hosts: tuple[str, ...]
    maps: int
    unselected: tuple[str, ...]
    candidates_compete: bool
    ladders: tuple[ForeignLadder, ...]
    findings: tuple[AuditFinding, ...]
    changes: tuple[ForeignChange, ...] = ()
