"""Inventories: the storage facts of a model (tensor name to format and shape), and where the bytes are."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Self

from pydantic import Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from kernelmap.errors import Diagnostic, KernelmapError, nearest
from kernelmap.models.base import FileModel, Identifier, Scalar, StrictModel, Text, digest
from kernelmap.vocabulary import FORMATS

MetadataValue = Scalar | tuple[Scalar, ...]
TensorName = Annotated[str, StringConstraints(min_length=1, max_length=1024)]
Size = Annotated[int, Field(ge=0, lt=2**63)]


class FileStamp(StrictModel):
    """Size in bytes and time of change (ns since 1970) of a model file when its header was read."""

    size: Size
    mtime_ns: int


class TensorInfo(StrictModel):
    """One tensor as it is stored."""

    name: TensorName
    format: Identifier = Field(description="Storage format; one outside the vocabulary is kept, and no op can bind it.")
    shape: tuple[Size, ...] = Field(
        max_length=8, description="Row-major (numpy) order in values: experts are [E, rows, columns]."
    )
    nbytes: int = Field(
        default=-1, ge=-1, lt=2**63, description="Stored bytes; left out (-1), they follow from a format we know."
    )
    file: int = Field(default=0, ge=0, description="Index into the inventory's files.")
    offset: Size | None = Field(default=None, description="First byte in the file; absent in profiles.")

    @model_validator(mode="after")
    def _check_nbytes(self) -> Self:
        """A row read at another format's stride gives plausible garbage: the size must follow from the format."""
        facts = {"format": self.format, "found": self.nbytes, "columns": self.shape[-1] if self.shape else 1}
        if self.format not in FORMATS:
            if self.nbytes < 0:
                near = ", ".join(nearest(self.format, FORMATS))
                context = {**facts, "help": f"near: {near}" if near else "give nbytes"}
                raise PydanticCustomError("unknown_format", "unknown format {format} without nbytes", context)
            return self
        size = stored_bytes(self.format, self.shape)
        if size < 0:
            raise PydanticCustomError("row_size", "a row of {columns} values is no whole {format} blocks", facts)
        if self.nbytes < 0:
            # Not a default_factory nor a "before" validator: the first reports a second error whenever the format is
            # wrong, the second turns strict JSON validation into strict Python validation, which refuses lists.
            object.__setattr__(self, "nbytes", size)
        elif size != self.nbytes:
            message = "nbytes is {found}, but {format} in this shape takes {expected}"
            raise PydanticCustomError("nbytes", message, {**facts, "expected": size})
        return self


class Inventory(FileModel):
    """Every tensor of a model in file order, and the metadata that circuits read.

    ``metadata`` holds GGUF key-values. Values too long to matter for a choice (arrays under ``tokenizer.``, arrays of
    more than 4096 values, texts of more than 4096 bytes) are reduced to their length under ``<key>.count``.
    """

    architecture: str = Field(min_length=1, max_length=200, description="GGUF's general.architecture.")
    metadata: Mapping[str, MetadataValue] = Field(default_factory=dict)
    tensors: tuple[TensorInfo, ...]
    files: tuple[str, ...] = Field(default=(), description="Model files, in shard order; absent in profiles.")
    stamps: tuple[FileStamp, ...] = Field(default=(), description="One a file, to notice a file that changed since.")
    source: Text = Field(default="", description="Where a profile's facts come from.")
    derived: bool = Field(default=False, description="Follows from published dims by rule, not read off a file.")

    @model_validator(mode="after")
    def _check_unique(self) -> Self:
        if len(self._by_name) < len(self.tensors):
            twice = Counter(item.name for item in self.tensors).most_common(1)[0][0]
            raise PydanticCustomError("tensor_repeat", "tensor {name} is listed twice", {"name": twice})
        return self

    @cached_property
    def _by_name(self) -> dict[str, TensorInfo]:
        return {item.name: item for item in self.tensors}

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Tensor names in file order."""
        return tuple(item.name for item in self.tensors)

    def tensor(self, name: str) -> TensorInfo:
        """The tensor of that name. Raises KernelmapError (KM620), with near names, if there is none."""
        try:
            return self._by_name[name]
        except KeyError:
            near = nearest(name, self._by_name)
            raise KernelmapError(Diagnostic("KM620", f"the model has no tensor {name!r}", near=near)) from None

    @cached_property
    def digest(self) -> str:
        """Digest of what selection depends on: architecture, metadata, names, formats, shapes; not where bytes are."""
        return digest(
            {
                "architecture": self.architecture,
                "metadata": {key: _json(value) for key, value in self.metadata.items()},
                "tensors": sorted([item.name, item.format, list(item.shape)] for item in self.tensors),
            }
        )

    def __copy__(self) -> Self:
        """A copy without the cached values: `model_copy(update=...)` would carry them over stale."""
        copied = super().__copy__()
        for name in ("_by_name", "names", "digest"):
            copied.__dict__.pop(name, None)
        return copied


def _json(value: MetadataValue) -> Any:
    return list(value) if isinstance(value, tuple) else value


def stored_bytes(format_name: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor of a vocabulary format; -1 if the format is unknown or a row is no whole blocks."""
    known = FORMATS.get(format_name)
    if known is None:
        return -1
    try:
        return math.prod(shape[:-1]) * known.row_bytes(shape[-1] if shape else 1)
    except ValueError:
        return -1
