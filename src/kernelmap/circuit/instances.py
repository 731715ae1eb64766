"""Op instances: what the resolver decides about and the session runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kernelmap.models.base import Scalar
from kernelmap.models.circuit import Circuit, Op
from kernelmap.models.contract import Contract
from kernelmap.models.inventory import Inventory, TensorInfo

Dim = int | str
"""A size: known, or the name of one of the circuit's dynamic dims."""


@dataclass(frozen=True, slots=True)
class Value:
    """An edge: a tensor that an op or the caller makes. ``key`` is unique in a circuit."""

    key: str
    dtype: str
    shape: tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class BoundWeight:
    """A weight port's tensor, or rows ``[start, stop)`` of its second last axis."""

    tensor: TensorInfo
    pattern: str
    rows: tuple[int, int] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of what the op sees."""
        if self.rows is None:
            return self.tensor.shape
        start, stop = self.rows
        return (*self.tensor.shape[:-2], stop - start, self.tensor.shape[-1])


@dataclass(frozen=True, slots=True)
class SharedOp:
    """All that the layers of an op have in common when group, formats, shapes and params are equal."""

    op: Op
    block: str
    where: str
    """JSON pointer into the circuit."""
    group: str
    contract: Contract
    dims: Mapping[str, int]
    """Static dims of the contract."""
    dynamic: Mapping[str, Dim]
    """The contract's dynamic dims by name: the circuit's symbol, or a size that this circuit fixes."""
    params: Mapping[str, Scalar]
    dtypes: Mapping[str, str]
    """Concrete dtype or format of each bound port."""
    outputs: Mapping[str, tuple[str, tuple[Dim, ...]]]
    """Output port to dtype and shape."""


@dataclass(frozen=True, slots=True)
class OpInstance:
    """An op in one layer (or outside of all, ``layer`` None), with its own tensors and edges."""

    shared: SharedOp
    layer: int | None
    weights: Mapping[str, BoundWeight]
    inputs: Mapping[str, Value]
    outputs: Mapping[str, Value]
    state: Mapping[str, str]
    """State port to key of the state tensor."""


@dataclass(frozen=True, slots=True)
class StateInstance:
    """A state tensor of a session."""

    key: str
    name: str
    layer: int | None
    dtype: str
    shape: tuple[Dim, ...]
    update: str


@dataclass(frozen=True, slots=True)
class Elaborated:
    """A circuit for one inventory, in the order in which it runs. Only made when nothing is wrong."""

    circuit: Circuit
    inventory: Inventory
    options: Mapping[str, str]
    layer_count: int
    instances: tuple[OpInstance, ...]
    """``init`` ops, then header, layers, footer."""
    inputs: Mapping[str, Value]
    """Input name (``name`` or ``name/layer``) to its value."""
    outputs: Mapping[str, Value]
    """Output name (``name`` or ``name/layer``) to its value."""
    states: Mapping[str, StateInstance]
    lists: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Key of a stacked carried list to the keys of its entries."""
