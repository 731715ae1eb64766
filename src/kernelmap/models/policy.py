"""Policies: what a user allows, forbids and demands of a resolution."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from itertools import combinations
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from kernelmap.models.base import FileModel, Identifier, PortName, StrictModel, digest
from kernelmap.vocabulary import Phase

EvidencePolicy = Literal["ignore", "warn", "require"]
SwitchName = Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z0-9_]*$", max_length=100)]


class PolicyRoute(StrictModel):
    """A route on top of the circuit's own: lets a candidate compete for an op, in one phase or all."""

    op: PortName
    phase: Phase | None = None
    allow: Identifier


class Pin(StrictModel):
    """This provider or an error, for an op in one phase or all. Overrides no check."""

    op: PortName
    phase: Phase | None = None
    id: Identifier


class Policy(FileModel):
    """Routes, exclusions, pins, evidence and kill switches; part of the plan and its digest."""

    schema_version: Literal[1] = 1
    routes: tuple[PolicyRoute, ...] = ()
    exclude: tuple[Identifier, ...] = ()
    pin: tuple[Pin, ...] = ()
    evidence: EvidencePolicy = "warn"
    kill_switches: tuple[SwitchName, ...] = Field(default=(), description="Switches that are set.")
    options: Mapping[PortName, Identifier] = Field(default_factory=dict, description="Values of the circuit's options.")

    @model_validator(mode="after")
    def _one_pin(self) -> Policy:
        """Two pins that could meet are refused: either would override the other."""
        for one, other in combinations(self.pin, 2):
            if (
                one.op == other.op
                and one.id != other.id
                and (one.phase == other.phase or not (one.phase and other.phase))
            ):
                facts = {"op": one.op, "ids": f"{one.id} and {other.id}"}
                raise PydanticCustomError("pin_conflict", "{op} is pinned to {ids}", facts)
        return self

    @cached_property
    def digest(self) -> str:
        """Digest of the whole policy, order of lists left out."""
        return digest(self.normalised().model_dump(mode="json", exclude={"schema_ref"}))

    def normalised(self) -> Policy:
        """The same policy with every list sorted and without repeats."""
        return Policy(
            routes=tuple(sorted(set(self.routes), key=lambda r: (r.op, r.phase or "", r.allow))),
            exclude=tuple(sorted(set(self.exclude))),
            pin=tuple(sorted(set(self.pin), key=lambda p: (p.op, p.phase or "", p.id))),
            evidence=self.evidence,
            kill_switches=tuple(sorted(set(self.kill_switches))),
            options=dict(sorted(self.options.items())),
        )
