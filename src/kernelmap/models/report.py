"""Reports: one record of decisions, groups, maps and findings, behind the HTML page and its JSON."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from kernelmap.models.audit import Audit
from kernelmap.models.base import FileModel, StrictModel
from kernelmap.models.contract import Contract
from kernelmap.models.diff import Diff
from kernelmap.models.evidence import Evidence
from kernelmap.models.kernel_map import KernelMap
from kernelmap.models.plan import Decision


class ReportDecision(StrictModel):
    """A decision record of a circuit, and the hosts on which it is exactly this one."""

    circuit: str
    hosts: tuple[str, ...]
    decision: Decision


class ReportGroup(StrictModel):
    """An equivalence group: its expanded contract, and where that is declared."""

    contract: Contract
    digest: str
    file: str


class ReportMap(StrictModel):
    """A map, where it is declared, its evidence, and why the evidence does not cover it as it is now."""

    map: KernelMap
    digest: str
    file: str
    evidence: Evidence | None = None
    gaps: tuple[str, ...] = Field(default=(), description="Empty if the evidence is valid.")


class Report(FileModel):
    """The record behind every rendering of a report."""

    schema_version: Literal[1] = 1
    made_by: str = Field(description="Name and version of the program that made it.")
    decisions: tuple[ReportDecision, ...]
    groups: tuple[ReportGroup, ...] = Field(description="Groups that an op asks for; of a whole report, all.")
    maps: tuple[ReportMap, ...] = Field(description="The maps of these groups.")
    audit: Audit
    diff: Diff | None = None
