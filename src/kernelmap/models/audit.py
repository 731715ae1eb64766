"""Audits: what circuits have no provider for, what never runs, what is not proved."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from kernelmap.models.base import FileModel, StrictModel
from kernelmap.models.plan import Reason
from kernelmap.vocabulary import Phase

Severity = Literal["error", "warning", "note"]


class AuditCell(StrictModel):
    """A circuit in a phase on a host."""

    circuit: str
    phase: Phase
    host: str
    ops: int = Field(description="Decisions to make: an op counts once for each set of layers that share one.")
    holes: tuple[str, ...] = Field(default=(), description="Ops without a provider.")
    single: tuple[str, ...] = Field(default=(), description="Ops with one eligible provider only.")
    problems: int = Field(default=0, description="Errors that kept the circuit from being resolved at all.")

    @property
    def text(self) -> str:
        """``3/4 2 single``: decided of all, and of these with one provider only; ``-`` if there is nothing to do."""
        if self.problems:
            return "error"
        if not self.ops:
            return "-"
        single = f" {len(self.single)} single" if self.single else ""
        return f"{self.ops - len(self.holes)}/{self.ops}{single}"


class AuditCandidate(StrictModel):
    """A candidate of a group that some op asks for, and what it lacks to be selected there."""

    id: str
    circuit: str
    phase: Phase
    ops: tuple[str, ...]
    hosts: tuple[str, ...]
    reasons: tuple[Reason, ...] = Field(description="Empty if it is selected.")
    flip: str = Field(description="The smallest change that would select it; empty if it is selected.")


class AuditFinding(StrictModel):
    """A diagnostic of the audit, as `kernelmap check --format json` writes them."""

    code: str
    severity: Severity
    message: str
    file: str | None
    line: int | None
    column: int | None
    pointer: str | None
    expected: str | None
    found: str | None
    near: tuple[str, ...]
    help: str | None


class Audit(FileModel):
    """The record behind every rendering of an audit."""

    schema_version: Literal[1] = 1
    circuits: tuple[str, ...]
    hosts: tuple[str, ...]
    maps: int = Field(description="Maps in the registry.")
    cells: tuple[AuditCell, ...]
    candidates: tuple[AuditCandidate, ...]
    findings: tuple[AuditFinding, ...]
