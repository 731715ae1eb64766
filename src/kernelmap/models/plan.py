"""Plans: the immutable result of resolving, and the decision records in it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal

from pydantic import Field

from kernelmap.collection import collection_paused
from kernelmap.models.base import FileModel, Scalar, StrictModel, canonical_json, digest
from kernelmap.models.policy import Policy
from kernelmap.vocabulary import Phase, Status


class Reason(StrictModel):
    """Why a provider was not selected: the check that refused it, in words and in typed facts."""

    code: str
    check: str
    message: str
    facts: Mapping[str, Any] = Field(default_factory=dict)


class Candidate(StrictModel):
    """One map of the group in a decision: selected, or with every reason why not."""

    id: str
    status: Status
    priority: int
    phases: tuple[Phase, ...]
    selected: bool = False
    reasons: tuple[Reason, ...] = ()

    @property
    def eligible(self) -> bool:
        """Whether only its rank kept it from being selected."""
        return all(reason.check == "rank" for reason in self.reasons)


class PlanVariant(StrictModel):
    """A variant as the plan froze it: whether it may run on this host under this policy, and its guards."""

    name: str
    enabled: bool
    why_not: str = ""
    guards: Mapping[str, int] = Field(default_factory=dict)
    fallback: str | None = None
    kill_switch: str | None = None


class WeightUse(StrictModel):
    """A weight port: the tensor pattern, its stored format and shape, and the layout that the provider wants."""

    port: str
    tensor: str
    format: str
    shape: tuple[int, ...]
    rows: tuple[int, int] | None = None
    prepared_format: str | None = None
    prepared_bytes: int = 0


class Decision(StrictModel):
    """The one record behind plan, text, JSON and errors: an op in a phase, its group, and what became of each map."""

    name: str
    op: str
    phase: Phase
    layers: tuple[int, ...] = Field(description="Layers that share this decision; empty for header, footer and init.")
    where: str = Field(description="JSON pointer of the op in the circuit.")
    group: str
    contract_digest: str
    dims: Mapping[str, int]
    params: Mapping[str, Scalar]
    weights: tuple[WeightUse, ...]
    provider: str | None
    map_digest: str = ""
    variants: tuple[PlanVariant, ...] = ()
    candidates: tuple[Candidate, ...]

    @property
    def key(self) -> str:
        """Identity inside a plan: op, phase and first layer."""
        first = self.layers[0] if self.layers else "-"
        return f"{self.name}:{self.phase.value}:{first}"


class ResidentWeight(StrictModel):
    """A form in which tensors stay in memory: raw as stored, or prepared; a shared prepared tensor counts once."""

    tensor: str
    form: str
    count: int
    bytes: int


class HostFacts(StrictModel):
    """The facts of the host that checks consulted; `bind` demands these, not an equal host."""

    name: str
    devices: tuple[str, ...]
    isa: Mapping[str, bool] = Field(description="Features that some map or variant of a visited group asked for.")


class PlanWarning(StrictModel):
    """A warning that travels with the plan."""

    code: str
    message: str


class Plan(FileModel):
    """What will run, and why. Two equal digests mean equal choices from equal facts."""

    schema_version: Literal[1] = 1
    circuit: str
    circuit_digest: str
    inventory_digest: str
    architecture: str
    options: Mapping[str, str]
    policy: Policy
    host: HostFacts
    phases: tuple[Phase, ...]
    decisions: tuple[Decision, ...]
    residency: tuple[ResidentWeight, ...]
    total_bytes: int
    warnings: tuple[PlanWarning, ...] = ()

    def canonical(self) -> str:
        """Canonical JSON of the plan, without names that change nothing (the host's)."""
        return canonical_json(self._value())

    def _value(self) -> dict[str, Any]:
        value = self.model_dump(mode="json", by_alias=True, exclude={"schema_ref": True, "host": {"name"}})
        value["policy"].pop("$schema", None)
        return value

    @cached_property
    def digest(self) -> str:
        """``sha256:`` over `canonical`."""
        with collection_paused():
            return digest(self._value())
