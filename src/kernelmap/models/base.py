"""The common base of all models, and the field types that several share."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Scalar = bool | int | float | str

Identifier = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$", max_length=200)]
"""Ids of maps, groups, ops, circuits and formats: lower case, digits, underscores."""
PortName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$", max_length=64)]
"""Names of ports and parameters: they become Python argument names."""
DimName = Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Za-z0-9_]*$", max_length=32)]
"""Names of dims: they begin with a capital."""
Template = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_{}.]+$", max_length=300)]
"""A group or dtype with ``{port}``, ``{port.act}`` or ``{option}`` holes."""
FunctionPath = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$", max_length=300)]
"""``module:function``."""
Text = Annotated[str, StringConstraints(max_length=2000)]


class StrictModel(BaseModel):
    """Frozen, strict (no coercion), and closed: unknown keys are errors."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", ser_json_inf_nan="strings")

    def __copy__(self) -> Self:
        """A copy without cached properties: `model_copy(update=…)` would carry them over stale."""
        copied = super().__copy__()
        for name in set(copied.__dict__) - set(type(self).model_fields):
            del copied.__dict__[name]
        return copied


class FileModel(StrictModel):
    """The top level of a file that people write: ``$schema`` first, ``schema_version`` required."""

    schema_ref: str | None = Field(default=None, alias="$schema", description="Path or URL of this file's JSON Schema.")
    schema_version: Literal[1] = Field(description="Version of the file format.")

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", validate_by_alias=True, validate_by_name=True)


def canonical_json(value: Any) -> str:
    """JSON with sorted keys, no spaces, ASCII only: equal values give equal text, whatever the hash seed."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def digest(value: Any) -> str:
    """``sha256:`` and 64 hex digits over `canonical_json` of a JSON-like value."""
    return "sha256:" + hashlib.sha256(canonical_json(value).encode("ascii")).hexdigest()


def content(model: BaseModel, leave_out: Iterable[str] = ()) -> dict[str, Any]:
    """The JSON value of a model without ``$schema``, prose (``leave_out``) and everything at its default."""
    excluded = {"schema_ref", *leave_out}
    return model.model_dump(mode="json", by_alias=True, exclude=excluded, exclude_defaults=True)
