"""Kernel maps: one file declares one provider of an equivalence group."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, StringConstraints, field_validator, model_validator
from pydantic_core import PydanticCustomError

from kernelmap.expressions import SizeExpr
from kernelmap.models.base import (
    DimName,
    FileModel,
    FunctionPath,
    Identifier,
    PortName,
    StrictModel,
    Text,
    content,
    digest,
)
from kernelmap.models.foreign import Foreign
from kernelmap.vocabulary import ISA_FEATURES, Device, Phase, Status

_GUARD = re.compile(r"^([A-Z][A-Za-z0-9_]*)_(min|max)$")
PROSE = ("summary", "claims", "caveats")


def _known_features(features: tuple[str, ...]) -> tuple[str, ...]:
    from kernelmap.errors import nearest

    for feature in features:
        if feature not in ISA_FEATURES:
            near = ", ".join(nearest(feature, ISA_FEATURES))
            raise PydanticCustomError(
                "isa_feature",
                "unknown ISA feature {name}",
                {"name": feature, "help": f"near: {near}" if near else ""},
            )
    if len(set(features)) != len(features):
        raise PydanticCustomError("isa_repeat", "an ISA feature is listed twice")
    return tuple(sorted(features))


class Selection(StrictModel):
    """What the resolver ranks by."""

    status: Status
    priority: int = Field(ge=0, le=1_000_000, description="Ranks providers inside one group only.")
    equivalence_group: Identifier
    phases: tuple[Phase, ...] = Field(min_length=1)

    @field_validator("phases")
    @classmethod
    def _unique(cls, phases: tuple[Phase, ...]) -> tuple[Phase, ...]:
        if len(set(phases)) != len(phases):
            raise PydanticCustomError("phase_repeat", "a phase is listed twice")
        return phases


class Requires(StrictModel):
    """What the host must have."""

    device: Device = Device.CPU
    isa: tuple[str, ...] = ()

    _features = field_validator("isa")(_known_features)


class DimConstraint(StrictModel):
    """Limits of one static dim."""

    min: int | None = Field(default=None, ge=0)
    max: int | None = Field(default=None, ge=0)
    multiple_of: int | None = Field(default=None, ge=1)

    def refusal(self, name: str, value: int) -> str:
        """What ``value`` breaks, e.g. ``"H % 256 == 0"``; empty if it fits."""
        if self.min is not None and value < self.min:
            return f"{name} >= {self.min}"
        if self.max is not None and value > self.max:
            return f"{name} <= {self.max}"
        if self.multiple_of is not None and value % self.multiple_of:
            return f"{name} % {self.multiple_of} == 0"
        return ""


class Constraints(StrictModel):
    """Limits of a provider on static dims; limits on dynamic dims are guards of variants."""

    dims: Mapping[DimName, DimConstraint] = Field(default_factory=dict)


class WeightPreparation(StrictModel):
    """A hook that repacks weights once at load into a named layout."""

    function: FunctionPath
    weights: tuple[PortName, ...] = Field(min_length=1)
    prepared_format: Identifier
    prepared_bytes: SizeExpr = Field(description="Bytes of one prepared tensor, over the static dims.")
    max_total_bytes: int = Field(ge=0, lt=2**63, description="Budget of this map over all layers it would serve.")


class Scratch(StrictModel):
    """Working memory of one call, planned by the framework."""

    name: PortName
    size_bytes: SizeExpr = Field(description="Over the dims and ``threads``.")
    alignment: Literal[1, 2, 4, 8, 16, 32, 64, 128, 256, 4096] = 64


class Variant(StrictModel):
    """A schedule inside a provider: same bytes out."""

    name: PortName
    requires: tuple[str, ...] = ()
    shape_constraints: Mapping[str, Annotated[int, Field(ge=0)]] = Field(
        default_factory=dict, description="Guards on dims: {'R_min': 8, 'R_max': 64}."
    )
    fallback: PortName | None = Field(default=None, description="The variant to take when this one may not run.")
    kill_switch: Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z0-9_]*$", max_length=100)] | None = None
    function: FunctionPath | None = None

    _features = field_validator("requires")(_known_features)

    @field_validator("shape_constraints")
    @classmethod
    def _guards(cls, guards: Mapping[str, int]) -> Mapping[str, int]:
        for name in guards:
            if not _GUARD.match(name):
                raise PydanticCustomError(
                    "guard_name", "a guard is named DIM_min or DIM_max, not {name}", {"name": name}
                )
        return guards

    @cached_property
    def guards(self) -> tuple[tuple[str, str, int], ...]:
        """(dim, ``"min"`` or ``"max"``, bound), sorted."""
        found = []
        for name, bound in sorted(self.shape_constraints.items()):
            match = _GUARD.match(name)
            assert match is not None
            found.append((match[1], match[2], bound))
        return tuple(found)

    @property
    def is_base(self) -> bool:
        """Whether nothing can keep this variant from running."""
        return not (self.requires or self.shape_constraints or self.kill_switch or self.fallback)

    def admits(self, dims: Mapping[str, int]) -> bool:
        """Whether the guards hold for these dims."""
        return all(dims[dim] >= bound if side == "min" else dims[dim] <= bound for dim, side, bound in self.guards)


def _impl_schema(schema: dict[str, Any]) -> None:
    """Says in the JSON Schema what `Impl` checks: a foreign provider has no code here, and all others have."""
    none = {"properties": {"function": {"type": "null"}, "variants": {"maxItems": 0}}}
    some = {"required": ["function", "variants"], "properties": {"function": {"type": "string"},
            "variants": {"minItems": 1}}}  # fmt: skip
    schema |= {"if": {"properties": {"backend": {"const": "foreign"}}}, "then": none, "else": some}


class Impl(StrictModel):
    """Where the code is. The backend ``foreign`` has none here: no function, no variants, nothing that could run."""

    model_config = ConfigDict(json_schema_extra=_impl_schema)

    backend: Literal["numba", "torch", "numpy", "foreign"]
    function: FunctionPath | None = None
    variants: tuple[Variant, ...] = ()

    @cached_property
    def by_name(self) -> Mapping[str, Variant]:
        """The variants by name, in declared order."""
        return {variant.name: variant for variant in self.variants}

    @property
    def base(self) -> Variant:
        """The variant without guards."""
        return next(variant for variant in self.variants if variant.is_base)

    @model_validator(mode="after")
    def _one_base(self) -> Impl:
        if self.backend == "foreign":
            if self.function is not None or self.variants:
                raise PydanticCustomError("impl_foreign", "a foreign provider has neither function nor variants here")
            return self
        if self.function is None:
            raise PydanticCustomError("impl_function", "the function is missing")
        if not self.variants:
            raise PydanticCustomError("impl_variants", "at least one variant is needed")
        if len({variant.name for variant in self.variants}) != len(self.variants):
            raise PydanticCustomError("variant_repeat", "two variants have the same name")
        if sum(variant.is_base for variant in self.variants) != 1:
            raise PydanticCustomError("variant_base", "exactly one variant has no guard, need, fallback or kill switch")
        return self


class Reproduced(StrictModel):
    """What was measured here about a claim."""

    text: Text
    host: Text
    shape: Text
    comparable: bool


class Claim(StrictModel):
    """A published figure, with what became of it here."""

    text: Text
    source: Text
    reproduced: Reproduced | None = None


class KernelMap(FileModel):
    """A kernel map file: the declaration of one provider."""

    id: Identifier
    op: Identifier
    summary: Text
    selection: Selection
    requires: Requires = Requires()
    constraints: Constraints = Constraints()
    weight_preparation: tuple[WeightPreparation, ...] = ()
    scratch: tuple[Scratch, ...] = ()
    impl: Impl
    foreign: Foreign | None = Field(default=None, description="What another engine says of a provider of its own.")
    claims: tuple[Claim, ...] = ()
    caveats: tuple[Text, ...] = ()

    @model_validator(mode="after")
    def _foreign(self) -> KernelMap:
        if (self.foreign is not None) != (self.impl.backend == "foreign"):
            raise PydanticCustomError("foreign_backend", "a block foreign and the backend foreign go together")
        if self.foreign is not None and self.weight_preparation:
            raise PydanticCustomError("foreign_hook", "a foreign provider names no preparation hook: it would be run")
        return self

    @property
    def executable(self) -> bool:
        """Whether there is code for it here. Foreign providers are shown and compared, and never run."""
        return self.foreign is None

    @cached_property
    def digest(self) -> str:
        """Digest of what the map says, prose and ``$schema`` left out."""
        return digest(content(self, PROSE))

    @cached_property
    def proved_digest(self) -> str:
        """Digest of what a certificate or benchmark covers: as `digest`, without the status, which decides whether the
        provider may run and changes nothing in what it does."""
        value = content(self, PROSE)
        value["selection"].pop("status", None)
        return digest(value)
