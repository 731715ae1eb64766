"""What a map says of a provider of another engine: enough to compare and to explain, nothing that could run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from kernelmap.models.base import StrictModel, Text
from kernelmap.vocabulary import ISA_FEATURES


class ForeignPort(StrictModel):
    """A port by the other engine's names; the shape's dims are its own and may be expressions."""

    role: Literal["input", "weight", "output"]
    name: Text
    dtype: Text
    shape: tuple[Text, ...]


class ForeignVariant(StrictModel):
    """A variant of the other engine: it runs where the host has ``isa``, and nowhere if a need is unknown here."""

    name: Text
    isa: tuple[str, ...] = ()
    unknown_needs: tuple[Text, ...] = ()

    @field_validator("isa")
    @classmethod
    def _known(cls, features: tuple[str, ...]) -> tuple[str, ...]:
        for feature in features:
            if feature not in ISA_FEATURES:
                raise PydanticCustomError("isa_feature", "unknown ISA feature {name}", {"name": feature})
        return features


class Foreign(StrictModel):
    """Where a foreign map is from, by the other engine's own words; ids and groups here are made from these."""

    engine: Text
    id: Text
    op: Text
    equivalence_group: Text
    function: Text | None = Field(default=None, description="A symbol of the other engine; never looked up here.")
    variants: tuple[ForeignVariant, ...] = ()
    formats: Mapping[str, Text] = Field(default_factory=dict, description="Storage format of each operand.")
    ports: tuple[ForeignPort, ...] = ()
    numerical_contract: Text | None = None
    unknown_needs: tuple[Text, ...] = Field(
        default=(), description="Needs that cannot be said in terms of this registry: with one, it counts as unmet."
    )
    unread_constraints: tuple[Text, ...] = Field(
        default=(), description="JSON pointers of constraints that were not carried over and may limit it further."
    )
