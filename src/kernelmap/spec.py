"""What a provider's builder receives: the one thing that kernels import from the framework."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Scalar = bool | int | float | str


@dataclass(frozen=True, slots=True)
class BuildSpec:
    """Facts that are fixed when a provider is bound.

    A builder is ``build(spec) -> run``. ``run(*inputs, *weights, *state, *outputs, *scratch, threads) -> int`` takes
    the contract's ports by name and in contract order, writes ``outputs`` in place and returns 0, or 1 + the first
    bad row of the first input.

    Array conventions: a port of a number type is a numpy array of that dtype and of the contract's shape (``fp32``
    float32, ``fp16`` float16, ``bf16`` uint16 bit patterns, ``i32`` int32). A weight in a block format is a uint8 array
    whose last axis holds one row's bytes (shape ``[..., rows, row_bytes]``, any strides but a contiguous last axis). A
    prepared weight is the object that the map's preparation hook returned. Scratch is a uint8 array, aligned as the map
    says. An absent optional port is None.
    """

    provider: str
    """Id of the kernel map."""
    group: str
    """Equivalence group, fully expanded."""
    op: str
    """Name of the logical operation."""
    variant: str
    """Name of the variant to build."""
    dtypes: Mapping[str, str]
    """Port name to concrete dtype or storage format (as stored in the model, also when prepared)."""
    dims: Mapping[str, int]
    """Static dims of the contract by name, e.g. ``{"H": 2048, "I": 512, "E": 256, "K": 8}``."""
    params: Mapping[str, Scalar] = field(default_factory=dict)
    """Typed parameters of the contract by name, all of them."""
    prepared: Mapping[str, str] = field(default_factory=dict)
    """Weight port name to prepared format, for weights that arrive prepared."""
    arithmetic: Mapping[str, str] = field(default_factory=dict)
    """The contract's arithmetic block, templates filled."""
    isa: tuple[str, ...] = ()
    """Sorted ISA features of the host, by LLVM's names."""
