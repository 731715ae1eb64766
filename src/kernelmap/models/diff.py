"""Diffs: what changed between two locks, each change with its class."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field

from kernelmap.models.base import FileModel, StrictModel
from kernelmap.vocabulary import Phase


class ChangeKind(StrEnum):
    """Classes of changes, in the order in which they are shown."""

    UNRESOLVABLE = "became unresolvable"
    RESOLVABLE = "ceased to be unresolvable"
    PROVIDER = "provider changed within the group"
    OP = "op changed"
    VARIANTS = "variants changed"
    REASONS = "reasons changed"
    PROVIDER_ADDED = "provider added"
    PROVIDER_REMOVED = "provider removed"
    CONTRACT = "contract changed"
    CONTRACTS = "contract added or removed"
    ORACLE = "reference changed"
    MAP = "map changed"
    SOURCE = "source changed"
    CIRCUIT = "circuit changed"
    CIRCUIT_ADDED = "circuit added"
    CIRCUIT_REMOVED = "circuit removed"
    INVENTORY = "storage changed"
    HOST = "host changed"
    HOSTS = "host added or removed"
    POLICY = "policy changed"


class Change(StrictModel):
    """One change; fields that mean nothing for its kind are empty."""

    kind: ChangeKind
    subject: str = Field(default="", description="Map, group, circuit or host that changed.")
    circuit: str = ""
    op: str = ""
    phase: Phase | None = None
    layers: str = ""
    hosts: tuple[str, ...] = ()
    before: str = ""
    after: str = ""

    @property
    def where(self) -> str:
        """``qwen35_moe routed_experts prefill layers 0-39 on avx2_2core``; empty for changes of files."""
        layers = f"layers {self.layers}" if self.layers else ""
        hosts = f"on {', '.join(self.hosts)}" if self.hosts else ""
        phase = self.phase.value if self.phase is not None else ""
        return " ".join(part for part in (self.circuit, self.op, phase, layers, hosts) if part)


class Diff(FileModel):
    """Every change from one lock to another, worst class first."""

    schema_version: Literal[1] = 1
    before: str = Field(description="What the first side is: a file, folder, revision or host.")
    after: str
    changes: tuple[Change, ...]
