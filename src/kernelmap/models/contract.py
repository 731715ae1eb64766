"""Contracts: the exact arithmetic of an op for given storage formats."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from kernelmap.expressions import Predicate, SizeExpr
from kernelmap.models.base import (
    DimName,
    FileModel,
    FunctionPath,
    Identifier,
    PortName,
    Scalar,
    StrictModel,
    Template,
    Text,
    content,
    digest,
)

DtypeName = Annotated[
    str, StringConstraints(pattern=r"^(\{[a-z0-9_.]+\}|[A-Z][A-Za-z0-9_]*|[a-z0-9_]+)$", max_length=64)
]
"""A number type, a storage format, a ``{port}`` template, or a dtype variable (one that begins with a capital)."""
ShapeItem = Annotated[int, Field(ge=0, lt=2**63)] | SizeExpr
NUMERIC_PARAMS = ("int", "float")


class Domain(StrictModel):
    """Closed bounds of a port's values, as size expressions over the dims: outside them is an input error."""

    min: SizeExpr
    max: SizeExpr


class Port(StrictModel):
    """An input, weight or output of a contract."""

    name: PortName
    dtype: DtypeName
    shape: tuple[ShapeItem, ...] = Field(description="Dim symbols, ints, or size expressions such as '2 * I'.")
    optional: bool = Field(default=False, description="May be absent; a kernel then receives None.")
    domain: Domain | None = None
    typical: Domain | None = Field(
        default=None, description="Bounds of values as models have them, where far more is allowed: what tests draw."
    )


class StatePort(Port):
    """A state tensor that an op reads, writes or both; it lives in the session."""

    access: Literal["read", "write", "read_write"]


class Param(StrictModel):
    """A typed parameter. Without ``default`` every circuit must give it."""

    name: PortName
    type: Literal["int", "float", "bool", "enum"]
    choices: tuple[str, ...] = ()
    min: int | float | None = None
    max: int | float | None = None
    default: Scalar | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Param:
        if (self.type == "enum") != bool(self.choices):
            raise PydanticCustomError("param_choices", "choices belong to an enum parameter, and an enum needs them")
        if self.type not in NUMERIC_PARAMS and (self.min is not None or self.max is not None):
            raise PydanticCustomError("param_bounds", "min and max belong to int and float parameters")
        if self.default is not None and (why := self.refusal(self.default)):
            raise PydanticCustomError("param_default", "the default is refused: {why}", {"why": why})
        return self

    def refusal(self, value: Scalar) -> str:
        """Why ``value`` is no value of this parameter; empty if it is one."""
        kinds: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "bool": (bool,), "enum": (str,)}
        if not isinstance(value, kinds[self.type]) or (isinstance(value, bool) and self.type != "bool"):
            return f"{self.name} takes {'an' if self.type in ('int', 'enum') else 'a'} {self.type}, not {value!r}"
        if self.type == "enum" and value not in self.choices:
            return f"{self.name} is one of {', '.join(self.choices)}, not {value!r}"
        if self.type in NUMERIC_PARAMS:
            number = float(value)
            if self.min is not None and number < self.min:
                return f"{self.name} is at least {self.min}, not {value!r}"
            if self.max is not None and number > self.max:
                return f"{self.name} is at most {self.max}, not {value!r}"
        return ""


class ByteExact(StrictModel):
    """All providers give the same bytes."""

    kind: Literal["byte_exact"]


class Tolerance(StrictModel):
    """Providers agree with the oracle within ``atol + rtol * |reference|``."""

    kind: Literal["tolerance"]
    rtol: float = Field(ge=0)
    atol: float = Field(ge=0)


Equivalence = Annotated[ByteExact | Tolerance, Field(discriminator="kind")]

PROSE = ("summary",)


class Contract(FileModel):
    """A contract file: one equivalence group, or a family of them over explicit format tuples (``formats``)."""

    equivalence_group: Template
    op: Identifier
    summary: Text
    dims: Mapping[DimName, Text] = Field(description="Dim symbols with what they count.")
    dynamic_dims: tuple[DimName, ...] = Field(default=(), description="Dims that are known only at run time.")
    inputs: tuple[Port, ...] = ()
    weights: tuple[Port, ...] = ()
    state: tuple[StatePort, ...] = ()
    outputs: tuple[Port, ...] = Field(min_length=1)
    params: tuple[Param, ...] = ()
    dtype_vars: Mapping[str, tuple[str, ...]] = Field(default_factory=dict)
    formats: tuple[Mapping[PortName, str], ...] = Field(
        default=(), description="Explicit tuples of weight formats; never a cross product."
    )
    arithmetic: Mapping[str, str] = Field(default_factory=dict)
    alignment: Mapping[DimName, Annotated[int, Field(ge=1)]] = Field(
        default_factory=dict, description="Multiples beyond those that the block sizes imply."
    )
    requires: tuple[Predicate, ...] = Field(
        default=(), description="Predicates over static dims and params that must hold."
    )
    equivalence: Equivalence
    oracle: FunctionPath

    @cached_property
    def ports(self) -> Mapping[str, Port]:
        """All ports by name, in the order of the calling convention."""
        return {port.name: port for port in (*self.inputs, *self.weights, *self.state, *self.outputs)}

    @cached_property
    def params_by_name(self) -> Mapping[str, Param]:
        """The parameters by name."""
        return {param.name: param for param in self.params}

    @cached_property
    def static_dims(self) -> frozenset[str]:
        """The dims that are known when a plan is made."""
        return frozenset(self.dims) - frozenset(self.dynamic_dims)

    @cached_property
    def digest(self) -> str:
        """Digest of what the contract says, prose and ``$schema`` left out."""
        return digest(self.semantic_content())

    def semantic_content(self) -> dict[str, Any]:
        """The JSON value that `digest` covers."""
        return content(self, PROSE)
