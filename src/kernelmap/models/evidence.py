"""Evidence: a certificate that a provider meets its contract."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from kernelmap.models.base import FileModel, Identifier, Text


class Evidence(FileModel):
    """An evidence file, ``kernel_maps/evidence/<provider>.json``."""

    provider: Identifier
    contract_digest: str
    map_digest: str
    source_digest: str
    reference_digest: str = Field(description="Digest of the transitive sources of the contract's reference.")
    corpus_digest: str
    host: Text
    isa_paths: tuple[str, ...] = Field(description="ISA paths that ran.")
    not_run: tuple[str, ...] = Field(default=(), description="ISA paths that this host could not run.")
    toolchain: Mapping[str, str]
    cases: int = Field(ge=1)
    worst_error: float = Field(ge=0)
    seconds: float = Field(ge=0)
    result: Literal["pass", "fail"]
