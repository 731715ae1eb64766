"""Evidence of shadow runs, what a capture holds, and what a bisection found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from kernelmap.models.base import DimName, FileModel, Identifier, PortName, Scalar, StrictModel, Text
from kernelmap.vocabulary import Phase

Number = int | float | str
"""A value of an array; ``nan``, ``inf`` and ``-inf`` as text, which JSON has no numbers for."""
OnDivergence = Literal["stop", "record"]


class Difference(StrictModel):
    """Where an output or state departs from the reference, beyond what the contract allows."""

    port: PortName
    index: tuple[int, ...] = Field(description="First departing element, in row-major order.")
    expected: Number
    found: Number
    expected_bytes: str = Field(description="The element's bytes in memory order, hexadecimal.")
    found_bytes: str
    count: int = Field(description="Departing elements.")
    size: int = Field(description="All elements.")
    max_error: Number = Field(description="Largest absolute difference over all elements.")


class Side(StrictModel):
    """A kernel that ran, and the status that it returned (0, or 1 + the row that it refuses)."""

    provider: str
    variant: str
    status: int = 0


class Divergence(StrictModel):
    """A call in which two providers of a group disagree."""

    op: str
    layer: int | None = None
    phase: Phase
    call: int = Field(description="Which call of this op, layer and phase in the session, from 1.")
    group: str
    expected: Side
    found: Side
    differences: tuple[Difference, ...] = ()
    faults: tuple[Text, ...] = Field(default=(), description="Other statuses, stray writes, exceptions.")

    @property
    def where(self) -> str:
        """``routed_experts layer 3 (prefill)``."""
        return f"{self.op}{'' if self.layer is None else f' layer {self.layer}'} ({self.phase.value})"


class ShadowSubject(StrictModel):
    """A candidate beside production in an op and phase, over all layers."""

    op: str
    phase: Phase
    layers: str
    group: Identifier
    contract: str = Field(description="Digest of the contract.")
    production: Identifier
    candidate: Identifier
    candidate_map: str = Field(description="Digest of the candidate's map.")
    candidate_sources: str = Field(description="Digest of the candidate's transitive sources.")
    calls: int
    departed: int
    max_error: Number


class ShadowEvidence(FileModel):
    """What a shadow run compared, and every call that departed (or the first of them)."""

    schema_version: Literal[1] = 1
    circuit: str
    plan: str = Field(description="Digest of the plan that production ran.")
    inventory: str = Field(description="Digest of the model's storage facts.")
    host: str
    threads: int
    budget: int = Field(description="Departing calls that are allowed.")
    on_divergence: OnDivergence
    complete: bool = Field(description="Whether the run came to its end: not stopped, interrupted or failed.")
    within_budget: bool
    departed: int = Field(description="Departing calls.")
    subjects: tuple[ShadowSubject, ...]
    divergences: tuple[Divergence, ...] = Field(description="In the order of the run; the first ones, if very many.")


class Capture(FileModel):
    """One captured kernel call: all that its tensors do not say. Stands in a safetensors file's metadata."""

    schema_version: Literal[1]
    circuit: str = Field(max_length=200)
    op: PortName
    layer: int | None = Field(default=None, ge=0)
    phase: Phase
    provider: Identifier
    variant: PortName
    group: Identifier
    contract: str = Field(max_length=100, description="Digest of the contract.")
    map: str = Field(max_length=100, description="Digest of the provider's map.")
    sources: str = Field(max_length=100, description="Digest of the provider's transitive sources.")
    plan: str = Field(max_length=100, description="Digest of the plan that ran.")
    threads: int = Field(ge=1, le=256)
    status: int = Field(ge=0, description="0, or 1 + the row that the kernel refused; then there are no outputs.")
    dims: Mapping[DimName, int] = Field(description="All dims of the contract, static and dynamic.")
    params: Mapping[PortName, Scalar]
    dtypes: Mapping[PortName, str] = Field(description="Port to dtype or storage format, of ports that are there.")


class BisectStep(StrictModel):
    """An op whose provider differs between the two locks, and what became of it."""

    op: str
    phase: Phase
    layers: str
    good: Identifier
    bad: Identifier
    calls: int


class Bisection(FileModel):
    """Two locks run in lockstep: the first departing call, if there is one."""

    schema_version: Literal[1] = 1
    circuit: str
    good: str = Field(description="Digest of the good lock's plan.")
    bad: str
    compared: tuple[BisectStep, ...]
    same: int = Field(description="Decisions that are equal in both locks: the same code on the same input.")
    found: Divergence | None
