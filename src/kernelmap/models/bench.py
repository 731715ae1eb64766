"""Bench records: the providers of groups timed side by side, with all that the times rest on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from kernelmap.models.base import FileModel, Identifier, PortName, Scalar, StrictModel, Text
from kernelmap.models.policy import Policy
from kernelmap.vocabulary import Phase, Status

Seconds = Annotated[float, Field(gt=0)]


class BenchHost(StrictModel):
    """The machine that measured."""

    name: Text
    arch: Text
    cpu: Text
    cores: int = Field(ge=1)
    isa: tuple[str, ...]
    path: Text = Field(description="The highest ISA path of certificates that these features make up.")


class BenchProvider(StrictModel):
    """A provider as it was when it was measured."""

    status: Status
    priority: int
    map_digest: str = Field(description="Of what the map says, status left out.")
    source_digest: str


class BenchTimes(StrictModel):
    """One provider at one shape."""

    provider: Identifier
    variant: Text = Field(description="The variant that ran.")
    seconds: tuple[Seconds, ...] = Field(min_length=1, description="Seconds a kernel call, one value a round.")
    cpu_per_wall: float = Field(ge=0, description="Median CPU time of the process / wall time: cores kept busy.")
    prepared_bytes: int = Field(ge=0, description="Prepared weights of one copy.")


class BenchIneligible(StrictModel):
    """A provider that was not run, and every reason."""

    provider: Identifier
    reasons: tuple[Text, ...]


class BenchCase(StrictModel):
    """One op of a group in one phase at one shape and number of threads: round i of every provider ran side by side."""

    op: PortName
    group: Identifier
    phase: Phase
    dims: Mapping[str, int] = Field(description="All dims of the contract, tokens among them.")
    params: Mapping[str, Scalar]
    source: Text = Field(description="Where the dims come from.")
    threads: int = Field(ge=1)
    copies: int = Field(ge=1, description="Different weights that were cycled through.")
    incumbent: Identifier | None = Field(description="The provider that the resolver selects; absent if there is none.")
    times: tuple[BenchTimes, ...]
    ineligible: tuple[BenchIneligible, ...] = ()
    refused: Mapping[Identifier, Text] = Field(
        default_factory=dict, description="Providers that gave other outputs or could not be bound, and were not timed."
    )

    @model_validator(mode="after")
    def _side_by_side(self) -> BenchCase:
        if len({len(item.seconds) for item in self.times}) > 1:
            raise PydanticCustomError("bench_rounds", "the providers of a case have different numbers of rounds")
        if len({item.provider for item in self.times}) != len(self.times):
            raise PydanticCustomError("bench_repeat", "a provider stands twice in a case")
        return self

    def of(self, provider: str | None) -> BenchTimes | None:
        """The times of a provider; None if it was not timed."""
        return next((item for item in self.times if item.provider == provider), None)


class BenchRecord(FileModel):
    """A bench record, as ``kernelmap bench --output`` writes it and ``kernelmap promote`` reads it."""

    made: Text = Field(description="When, in UTC.")
    target: Text
    host: BenchHost
    toolchain: Mapping[str, str]
    policy: Policy
    contracts: Mapping[Identifier, str] = Field(description="Group to digest of its contract.")
    providers: Mapping[Identifier, BenchProvider]
    cases: tuple[BenchCase, ...]
