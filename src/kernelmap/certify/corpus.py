"""The corpus of a contract: small shapes at and around every constraint, adversarial values, routing distributions."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernelmap.certify.weights import Array, Style, random_weight
from kernelmap.contracts import alignment
from kernelmap.errors import BindError, Diagnostic
from kernelmap.expressions import Env, ExpressionError
from kernelmap.models.contract import Contract, Param, Port
from kernelmap.models.kernel_map import KernelMap, Variant
from kernelmap.session import NUMPY_TYPES
from kernelmap.spec import BuildSpec
from kernelmap.vocabulary import DTYPES

_FREE = (1, 2, 3, 8, 13)
_ROWS = (1, 2, 9, 17)
_STYLES = tuple(Style)
_PARAM_TRIES = 40


@dataclass(frozen=True, slots=True)
class Case:
    """One set of dims, params and inputs of a contract."""

    label: str
    spec: BuildSpec
    contract: Contract
    dims: Mapping[str, int]
    arrays: Mapping[str, Array | None]

    def expected(self) -> tuple[int, dict[str, Array]]:
        """(status, outputs) by the oracle: status 1 + the row that it refuses, and then no outputs."""
        module, _, name = self.contract.oracle.partition(":")
        try:
            oracle = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise BindError(Diagnostic("KM509", f"cannot load {self.contract.oracle}: {error}")) from error
        given = {key: array.copy() for key, array in self.arrays.items() if array is not None}
        try:
            return 0, dict(oracle(self.spec, **given))
        except ValueError as error:
            row = getattr(error, "row", None)
            if not isinstance(row, int):
                raise
            return 1 + row, {}


def cases_of(
    contract: Contract, item: KernelMap, variant: Variant, seed: int, isa: tuple[str, ...], most: int
) -> Iterator[Case]:
    """Up to ``most`` cases that fit contract, map and variant guards, spread over shapes and styles.

    Deterministic for a seed. Yields at least one case unless no small shape fits at all.
    """
    rng = np.random.default_rng(seed)
    fitting = list(_all_dims(contract, item, variant))
    rng.shuffle(fitting)
    made = 0
    for dims in _spread(fitting):
        params = _params(contract, dims, rng)
        if params is None:
            continue
        style = _STYLES[made % len(_STYLES)]
        types = {name: _dtype(contract, port, made) for name, port in contract.ports.items()}
        spec = BuildSpec(
            provider=item.id,
            group=contract.equivalence_group,
            op=contract.op,
            variant=variant.name,
            dtypes=types,
            dims={name: size for name, size in dims.items() if name in contract.static_dims},
            params=params,
            prepared={port: hook.prepared_format for hook in item.weight_preparation for port in hook.weights},
            arithmetic=dict(contract.arithmetic),
            isa=isa,
        )
        arrays = {
            port.name: _array(port, types[port.name], dims, rng, style)
            for port in (*contract.inputs, *contract.weights, *contract.state)
        }
        sizes = " ".join(f"{name}={size}" for name, size in dims.items())
        yield Case(f"{style.value} {sizes}", spec, contract, dims, arrays)
        made += 1
        if made == most:
            return


def _spread(fitting: list[dict[str, int]]) -> list[dict[str, int]]:
    """The same dims in another order: first those that bring most sizes that none before had.

    A few cases then reach every size of every dim; drawn at random, they would leave out the most rows now and again,
    and with them every mistake in what remains of a tile.
    """
    chosen: list[dict[str, int]] = []
    rest, seen = list(fitting), set[tuple[str, int]]()
    while rest:
        best = max(range(len(rest)), key=lambda at: len(rest[at].items() - seen))
        if rest[best].items() <= seen:
            break
        seen |= rest[best].items()
        chosen.append(rest.pop(best))
    return [*chosen, *rest]


def _all_dims(contract: Contract, item: KernelMap, variant: Variant) -> Iterator[dict[str, int]]:
    multiples = alignment(contract)
    choices: list[list[int]] = []
    for name in contract.dims:
        if name in contract.dynamic_dims:
            choices.append(list(_ROWS))
            continue
        step = multiples.get(name, 1)
        limit = item.constraints.dims.get(name)
        if limit is not None and limit.multiple_of is not None:
            step = int(np.lcm(step, limit.multiple_of))
        found = [step, 2 * step] if step > 1 else list(_FREE)
        choices.append([size for size in found if limit is None or not limit.refusal(name, size)])
    for sizes in itertools.product(*choices):
        dims = dict(zip(contract.dims, sizes, strict=True))
        if variant.admits(dims):
            yield dims


def _params(contract: Contract, dims: Mapping[str, int], rng: np.random.Generator) -> dict[str, Any] | None:
    """Random params for which the contract's requirements hold; None if some tries find none."""
    for _ in range(_PARAM_TRIES if contract.params else 1):
        params = {param.name: _param(param, rng) for param in contract.params}
        env = Env(names={**dims, **params})
        try:
            if all(predicate.evaluate(env) for predicate in contract.requires):
                return params
        except ExpressionError:
            continue
    return None


def _param(param: Param, rng: np.random.Generator) -> Any:
    if param.type == "enum":
        return str(rng.choice(param.choices))
    if param.type == "bool":
        return bool(rng.integers(2))
    low = float(param.min) if param.min is not None else (1.0 if param.type == "int" else 0.5)
    high = float(param.max) if param.max is not None else low + 3.0
    if param.type == "int":
        return int(rng.integers(int(low), int(high) + 1))
    return float(np.float32(rng.uniform(low, high)))


def _dtype(contract: Contract, port: Port, turn: int) -> str:
    """A port's dtype; dtype variables go through all their types, case by case."""
    if port.dtype in contract.dtype_vars:
        types = contract.dtype_vars[port.dtype]
        return types[turn % len(types)]
    return port.dtype


def shape_of(port: Port, dims: Mapping[str, int]) -> tuple[int, ...]:
    """A port's shape for known dims."""
    return tuple(item if isinstance(item, int) else item.evaluate(dims) for item in port.shape)


def _array(port: Port, dtype: str, dims: Mapping[str, int], rng: np.random.Generator, style: Style) -> Array | None:
    shape = shape_of(port, dims)
    if port.optional and rng.integers(3) == 0:
        return None
    if (bounds := port.typical or port.domain) is not None:
        return _in_domain(bounds.min.evaluate(dims), bounds.max.evaluate(dims), dtype, shape, rng)
    if dtype not in DTYPES or dtype in ("fp16", "bf16"):
        return random_weight(dtype, rng, shape, style)
    scale = {Style.PLAIN: 1.0, Style.EXTREME: 30.0, Style.SATURATING: 1.0, Style.EQUAL: 0.01}[style]
    values = rng.standard_normal(shape) * scale
    if style is Style.SATURATING:
        values = np.where(values < 0, -1.0, 1.0)
    elif style is Style.EQUAL:
        values = rng.choice([-0.01, 0.0, 0.01], shape)  # few values: ties, for whatever ranks them
    elif style is Style.EXTREME:
        values *= rng.choice([0.0, 1e-12, 1.0], shape, p=[0.05, 0.05, 0.9])
    return values.astype(NUMPY_TYPES[dtype])


def _in_domain(low: int, high: int, dtype: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Uniform, all the least, all the greatest, or few different values: for indices, the routing distributions."""
    kind = rng.integers(4)
    values = rng.integers(low, high + 1, shape)
    if kind == 1:
        values[...] = low
    elif kind == 2:
        values[...] = high
    elif kind == 3:
        values = np.minimum(values, low + 1)
    return values.astype(NUMPY_TYPES[dtype])
