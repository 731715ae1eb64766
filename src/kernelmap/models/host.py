"""Hosts: the facts of a machine that choices depend on."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, field_validator, model_validator
from pydantic_core import PydanticCustomError

from kernelmap.errors import nearest
from kernelmap.models.base import FileModel, StrictModel, Text
from kernelmap.vocabulary import ISA_FEATURES

_ONE_LINE = r"^[^\x00-\x1f\x7f-\x9f]*$"
HostName = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=_ONE_LINE)]
Bytes = Annotated[int, Field(ge=0, lt=2**63)]


class Caches(StrictModel):
    """Cache sizes in bytes: l1d and l2 of one core, l3 of one group of cores that share it; 0 where not known."""

    l1d: Bytes = 0
    l2: Bytes = 0
    l3: Bytes = 0


class Host(FileModel):
    """A machine: probed, or read from a profile of a machine you do not own."""

    name: HostName
    arch: Literal["x86_64", "aarch64", "other"] = Field(description="Instruction set; other has no ISA features.")
    cpu: str = Field(
        max_length=100, pattern=_ONE_LINE, description="LLVM's name of the CPU; generic where it is not known."
    )
    isa: tuple[str, ...] = Field(description="ISA features by LLVM's names, sorted.")
    cores: int = Field(ge=1, description="Physical cores that this process may use.")
    threads: int = Field(ge=1, description="Hardware threads that this process may use.")
    caches: Caches = Caches()
    memory_bytes: Bytes = Field(description="Memory that this process may use; 0 where it is not known.")
    devices: tuple[Literal["cpu", "cuda"], ...] = Field(default=("cpu",), min_length=1)
    source: Text = Field(default="", description="Where a profile's facts come from.")

    @field_validator("isa")
    @classmethod
    def _known_sorted(cls, features: tuple[str, ...]) -> tuple[str, ...]:
        for feature in features:
            if feature not in ISA_FEATURES:
                near = ", ".join(nearest(feature, ISA_FEATURES))
                facts = {"name": feature, "help": f"near: {near}" if near else "LLVM's names, such as avx512vnni"}
                raise PydanticCustomError("isa_feature", "unknown ISA feature {name}", facts)
        if list(features) != sorted(set(features)):
            help_text = {"help": "in order: " + ", ".join(sorted(set(features)))}
            raise PydanticCustomError("isa_order", "ISA features are listed once each, in sorted order", help_text)
        return features

    @model_validator(mode="after")
    def _check_threads(self) -> Self:
        if self.threads < self.cores:
            facts = {"cores": self.cores, "threads": self.threads}
            raise PydanticCustomError("threads", "{cores} cores have at least as many threads, not {threads}", facts)
        return self
