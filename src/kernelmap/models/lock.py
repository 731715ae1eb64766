"""Locks: the choices of circuits on hosts, and the digests of all that they rest on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints
from pydantic_core import PydanticCustomError

from kernelmap.models.base import FileModel, Identifier, PortName, StrictModel, Text
from kernelmap.models.host import HostName
from kernelmap.models.policy import Policy
from kernelmap.vocabulary import Phase, Status

SCHEMA_NAME = "urn:kernelmap:schema:lock:1"


def _ascending(text: str) -> str:
    """Ranges that ascend name each layer once: nobody who goes through them is kept for long."""
    before = -1
    for part in text.split(",") if text else ():
        first, _, last = part.partition("-")
        if not before < int(first) <= int(last or first):
            raise PydanticCustomError("layers", "layers are named once each, in ascending order")
        before = int(last or first)
    return text


Layers = Annotated[
    str,
    StringConstraints(pattern=r"^([0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?)*)?$", max_length=10_000),
    AfterValidator(_ascending),
]
"""Such as 0-3,7."""


class LockedChoice(StrictModel):
    """What was decided for an op in some layers, in one phase on one host; ``provider`` None is a hole."""

    op: PortName
    layers: Layers = Field(description="Such as 0-3,7; empty for header, footer and init.")
    group: Identifier
    provider: Identifier | None = None
    variants: tuple[PortName, ...] = Field(default=(), description="Those that may run, in the order of trial.")
    rejected: Mapping[Identifier, tuple[str, ...]] = Field(
        default_factory=dict, description="Every other map of the group with its reasons."
    )


class LockedContract(StrictModel):
    """Digests of a contract and of the sources of its reference."""

    contract: str
    oracle: str


class LockedMap(StrictModel):
    """A map of a group that was asked for, selected or not."""

    group: Identifier
    status: Status
    priority: int
    map: str = Field(description="Digest of the map.")
    sources: str = Field(description="Digest of the transitive sources of its functions.")


class LockedHost(StrictModel):
    """A host: the profile to read it from again (none: the machine itself), and the facts that checks asked for."""

    profile: str | None = None
    devices: tuple[str, ...]
    isa: Mapping[str, bool]


class LockedCircuit(StrictModel):
    """A circuit with the storage that it was resolved for, and its choices by phase and host."""

    target: str = Field(description="What the command line named: a shipped circuit, or a path.")
    model: str | None = Field(default=None, description="The model file; none for the reference storage.")
    circuit: str = Field(description="Digest of the circuit.")
    inventory: str = Field(description="Digest of the storage facts.")
    choices: Mapping[Phase, Mapping[str, tuple[LockedChoice, ...]]]
    problems: Mapping[str, tuple[Text, ...]] = Field(
        default_factory=dict, description="Host to what kept it from resolving; a lock file has none."
    )


class Lock(FileModel):
    """A lock file."""

    schema_version: Literal[1] = 1
    complete: bool = Field(description="Whether all circuits were locked: then a new one is a drift.")
    policy: Policy
    hosts: Mapping[HostName, LockedHost]
    contracts: Mapping[Identifier, LockedContract]
    maps: Mapping[Identifier, LockedMap]
    circuits: Mapping[Identifier, LockedCircuit]

    def text(self) -> str:
        """The canonical text of the file: sorted keys, one value a line, so that line diffs mean something."""
        value = self.model_dump(mode="json", by_alias=True, exclude_none=True)
        value["$schema"] = SCHEMA_NAME
        return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=True, allow_nan=False) + "\n"

    @property
    def holes(self) -> tuple[str, ...]:
        """Every op without a provider and every circuit that did not resolve, in words."""
        found = []
        for name, circuit in self.circuits.items():
            for phase, hosts in circuit.choices.items():
                for host, choices in hosts.items():
                    found += [f"{name}: {c.op} {phase.value} on {host}" for c in choices if c.provider is None]
            found += [f"{name} on {host}: {text}" for host, texts in circuit.problems.items() for text in texts]
        return tuple(found)
