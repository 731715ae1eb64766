"""Checking the tensors of a call against a contract's ports: types, devices, shapes, all problems at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kernelmap.errors import Diagnostic, KernelInputError
from kernelmap.expressions import SizeExpr
from kernelmap.models.contract import Contract, Port

if TYPE_CHECKING:
    import torch

NUMBER_TYPES = {
    "torch.float64": "fp64", "torch.float32": "fp32", "torch.float16": "fp16", "torch.bfloat16": "bf16",
    "torch.int8": "i8", "torch.int16": "i16", "torch.int32": "i32", "torch.int64": "i64", "torch.uint8": "u8",
    "torch.uint32": "u32", "torch.bool": "bool",
}  # fmt: skip
"""The vocabulary's number type by the text of torch's dtype."""


class OpInputError(KernelInputError, ValueError):
    """Arguments that an operation refuses; a ValueError as well, which is what torch's users expect."""


@dataclass(frozen=True, slots=True)
class Fit:
    """What the tensors of a call say of the contract's variables."""

    dtypes: Mapping[str, str]
    """Number type of every port, outputs too."""
    dims: Mapping[str, int]
    """Every dim, static and dynamic."""


def fit(contract: Contract, given: Mapping[str, torch.Tensor]) -> Fit:
    """Types and dims of a call with a tensor for each input and weight port.

    A dtype variable or dim gets its value where it first stands. Raises OpInputError (KM551 to KM553) with every
    problem.
    """
    fitter = _Fitter(contract, given)
    problems = [*fitter.types(), *fitter.devices(), *fitter.shapes()]
    if problems:
        raise OpInputError(problems)
    for port in contract.outputs:
        fitter.dtypes[port.name] = fitter.variables.get(port.dtype, port.dtype)
    return Fit(fitter.dtypes, fitter.dims)


@dataclass(slots=True)
class _Fitter:
    contract: Contract
    given: Mapping[str, torch.Tensor]
    dtypes: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    dims: dict[str, int] = field(default_factory=dict)

    @property
    def ports(self) -> tuple[Port, ...]:
        return (*self.contract.inputs, *self.contract.weights)

    def types(self) -> Iterator[Diagnostic]:
        for port in self.ports:
            name = str(self.given[port.name].dtype)
            actual = NUMBER_TYPES.get(name, name)
            allowed = self.contract.dtype_vars.get(port.dtype, (port.dtype,))
            if actual not in allowed:
                yield _problem("KM551", f"{port.name} is of dtype {name}", " or ".join(allowed), actual)
                continue
            self.dtypes[port.name] = actual
            shared = self.variables.setdefault(port.dtype, actual)
            if shared != actual:
                first = next(other.name for other in self.ports if other.dtype == port.dtype)
                yield _problem("KM551", f"{port.name} has another dtype than {first}", shared, actual)

    def devices(self) -> Iterator[Diagnostic]:
        first = self.ports[0].name
        device = self.given[first].device
        for port in self.ports[1:]:
            actual = self.given[port.name].device
            if actual != device:
                yield _problem("KM553", f"{port.name} is not where {first} is", str(device), str(actual))

    def shapes(self) -> Iterator[Diagnostic]:
        for port in self.ports:
            sizes = tuple(self.given[port.name].shape)
            if len(sizes) == len(port.shape):
                for item, size in zip(port.shape, sizes, strict=True):
                    if str(item) in self.contract.dims:
                        self.dims.setdefault(str(item), size)
        for port in self.ports:
            sizes = tuple(self.given[port.name].shape)
            wanted = tuple(self._size(item) for item in port.shape)
            if sizes != wanted:
                names = ", ".join(str(item) for item in port.shape)
                expected = f"[{names}] = [{', '.join(map(str, wanted))}]"
                yield _problem("KM552", f"{port.name} has an unfit shape", expected, str(list(sizes)))

    def _size(self, item: int | SizeExpr) -> int | str:
        """The size that an axis must have; the expression's text where a dim of it is not known."""
        if isinstance(item, int):
            return item
        return item.evaluate(self.dims) if item.names <= self.dims.keys() else str(item)


def _problem(code: str, message: str, expected: str, found: str) -> Diagnostic:
    return Diagnostic(code, f"{message}: {found} where {expected} is taken", expected=expected, found=found)
