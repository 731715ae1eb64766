"""Circuits: one model family's ops, edges, weights, state, layer kinds."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from kernelmap.expressions import Predicate, ScalarExpr
from kernelmap.models.base import (
    DimName,
    FileModel,
    Identifier,
    PortName,
    Scalar,
    StrictModel,
    Template,
    Text,
    content,
    digest,
)
from kernelmap.vocabulary import Phase

ValueRef = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)?$", max_length=130)]
"""``alias``, ``op.port``, ``carry.name``, ``init.alias`` or the name of a circuit input."""
ValueRefs = ValueRef | tuple[ValueRef, ...]
"""One value, or alternatives of which the first that exists in this layer is taken."""
TensorPattern = Annotated[str, StringConstraints(pattern=r"^[\w.\-{}/]+$", max_length=200)]
"""A tensor name, with ``{layer}``."""
IgnorePattern = Annotated[str, StringConstraints(pattern=r"^[\w.\-{}/*]+$", max_length=200)]
"""A tensor name, with ``{layer}`` and ``*``."""
ShapeItem = Annotated[int, Field(ge=0, lt=2**63)] | ScalarExpr
"""An int, a dim of the circuit (static or dynamic), or an expression over config and static dims."""
ALL_STEPS = (Phase.PREFILL, Phase.DECODE)


class ConfigEntry(StrictModel):
    """A fact of the model: read from metadata (``key``, with a default or required), or a literal (``value``)."""

    key: Annotated[str, StringConstraints(pattern=r"^[\w.{}\-]+$", max_length=200)] | None = None
    type: Literal["int", "float", "bool", "str"]
    array: bool = Field(default=False, description="One value a layer; a scalar in the model is repeated.")
    default: Scalar | tuple[Scalar, ...] | None = None
    value: Scalar | tuple[Scalar, ...] | None = None

    @model_validator(mode="after")
    def _one_source(self) -> ConfigEntry:
        if (self.key is None) == (self.value is None):
            raise PydanticCustomError("config_source", "a config entry has a key or a literal value, not both")
        if self.value is not None and self.default is not None:
            raise PydanticCustomError("config_default", "a literal needs no default")
        return self


class Option(StrictModel):
    """A user's choice, usable in templates as ``{name}`` and in predicates as ``option.name``."""

    choices: tuple[Identifier, ...] = Field(min_length=1)
    default: Identifier
    summary: Text = ""

    @model_validator(mode="after")
    def _default_is_a_choice(self) -> Option:
        if self.default not in self.choices:
            raise PydanticCustomError("option_default", "the default is none of the choices")
        return self


class Runtime(StrictModel):
    """How a session drives the circuit."""

    prefill_chunk: int = Field(default=512, ge=1, description="Most tokens of one prefill call.")


class CircuitInput(StrictModel):
    """A value that the caller gives: once a call, or (partial circuits) once a layer."""

    name: PortName
    dtype: Template
    shape: tuple[ShapeItem, ...]
    scope: Literal["session", "layer"] = "session"
    recorded_as: TensorPattern | None = Field(default=None, description="llama.cpp's name of it in recordings.")


class CircuitOutput(StrictModel):
    """A value that the caller gets, by the name that its block gives it."""

    name: PortName
    value: ValueRef
    scope: Literal["session", "layer"] = "session"
    recorded_as: TensorPattern | None = Field(default=None, description="llama.cpp's name of it in recordings.")


class StateTensor(StrictModel):
    """A tensor that lives from call to call; ``append`` grows along its first axis, ``replace`` is overwritten."""

    name: PortName
    dtype: Template
    shape: tuple[ShapeItem, ...]
    scope: Literal["session", "layer"] = "layer"
    update: Literal["append", "replace"]


class Carry(StrictModel):
    """A value passed from block to block; a ``list`` grows by one entry at each append and is read stacked."""

    name: PortName
    dtype: Template
    shape: tuple[ShapeItem, ...]
    kind: Literal["value", "list"] = "value"


class CarryUpdate(StrictModel):
    """Appends a block's value to a carried list."""

    append: ValueRef


class WeightView(StrictModel):
    """Rows ``[start, stop)`` of a tensor's second last axis."""

    tensor: TensorPattern
    rows: tuple[ShapeItem, ShapeItem] | None = None
    optional: bool = False


class WeightAlternatives(StrictModel):
    """The first of several tensors that the model has."""

    any_of: tuple[TensorPattern | WeightView, ...] = Field(min_length=1)
    optional: bool = False


WeightBinding = TensorPattern | WeightView | WeightAlternatives


class ParamExpr(StrictModel):
    """A parameter computed from config."""

    expr: ScalarExpr


class Op(StrictModel):
    """One operation of a block. It names an equivalence group, never a provider."""

    name: PortName
    op: Identifier
    equivalence_group: Template
    phases: tuple[Phase, ...] = Field(default=ALL_STEPS, min_length=1)
    when: Predicate | None = None
    inputs: Mapping[PortName, ValueRefs] = Field(default_factory=dict)
    weights: Mapping[PortName, WeightBinding] = Field(default_factory=dict)
    state: Mapping[PortName, PortName] = Field(default_factory=dict)
    outputs: Mapping[PortName, PortName] = Field(default_factory=dict, description="Output port to the value's alias.")
    dims: Mapping[DimName, ShapeItem] = Field(default_factory=dict, description="Dims that no shape implies.")
    params: Mapping[PortName, Scalar | ParamExpr] = Field(default_factory=dict)


class Block(StrictModel):
    """Ops in order. ``carry`` says what each carried value is after the block."""

    ops: tuple[Op, ...] = Field(min_length=1)
    carry: Mapping[PortName, ValueRefs | CarryUpdate] = Field(default_factory=dict)


class LayerRule(StrictModel):
    """What a layer is made of, if the predicate holds (or always): a mixer and an ffn block, or one block."""

    when: Predicate | None = None
    mixer: PortName | None = None
    ffn: PortName | None = None
    block: PortName | None = None

    @model_validator(mode="after")
    def _blocks(self) -> LayerRule:
        if (self.block is None) == (self.mixer is None or self.ffn is None) or (
            self.block is not None and (self.mixer is not None or self.ffn is not None)
        ):
            raise PydanticCustomError("layer_blocks", "a layer rule names a mixer and an ffn, or one block")
        return self

    @property
    def sequence(self) -> tuple[str, ...]:
        """Names of the blocks in the order in which they run."""
        return (self.block,) if self.block is not None else (str(self.mixer), str(self.ffn))


class Layers(StrictModel):
    """The layers: how many, and what each is (first rule that holds)."""

    count: ShapeItem
    rules: tuple[LayerRule, ...] = Field(min_length=1)


class Route(StrictModel):
    """Lets a named candidate compete, by priority, for a named op; it forces nothing."""

    op: PortName
    phases: tuple[Phase, ...] = Field(default=ALL_STEPS, min_length=1)
    allow: Identifier


class StorageTensor(StrictModel):
    """A tensor of the reference inventory; a ``{layer}`` pattern stands for one a layer (where ``when`` holds)."""

    name: TensorPattern
    format: Identifier
    shape: tuple[ShapeItem, ...]
    when: Predicate | None = None


class Storage(StrictModel):
    """A reference inventory, so that the circuit resolves without a model file."""

    source: Text
    derived: bool = Field(default=False, description="Follows from published dims by rule, not read off a file.")
    architecture: str
    metadata: Mapping[str, Scalar | tuple[Scalar, ...]] = Field(default_factory=dict)
    tensors: tuple[StorageTensor, ...]


class Circuit(FileModel):
    """A circuit file: one model family."""

    id: Identifier
    summary: Text
    architectures: tuple[str, ...] = Field(min_length=1, description="GGUF architecture names it serves.")
    partial: bool = Field(
        default=False, description="Covers a part of the model only; unread tensors are then no error."
    )
    ignores: tuple[IgnorePattern, ...] = Field(default=(), description="Tensors that no op reads, on purpose.")
    config: Mapping[PortName, ConfigEntry] = Field(default_factory=dict)
    options: Mapping[PortName, Option] = Field(default_factory=dict)
    runtime: Runtime = Runtime()
    dims: Mapping[DimName, ShapeItem] = Field(default_factory=dict, description="Static dims by name.")
    dynamic_dims: tuple[DimName, ...] = ()
    inputs: tuple[CircuitInput, ...] = Field(min_length=1)
    state: tuple[StateTensor, ...] = ()
    carry: tuple[Carry, ...] = ()
    blocks: Mapping[PortName, Block] = Field(min_length=1)
    init: PortName | None = None
    header: PortName | None = None
    layers: Layers | None = None
    footer: PortName | None = None
    outputs: tuple[CircuitOutput, ...] = Field(min_length=1)
    routes: tuple[Route, ...] = ()
    storage: Storage | None = None

    @cached_property
    def digest(self) -> str:
        """Digest of what the circuit says, prose and the reference inventory left out."""
        return digest(self.semantic_content())

    def semantic_content(self) -> dict[str, Any]:
        """The JSON value that `digest` covers."""
        return content(self, ("summary", "storage"))
