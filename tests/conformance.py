"""Generated cases of a contract: small shapes at and around its constraints, seeded inputs in their domains."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernelmap.bind import load_function, load_runner
from kernelmap.contracts import alignment
from kernelmap.expressions import Env
from kernelmap.models.contract import Contract, Param, Port
from kernelmap.models.kernel_map import KernelMap, Variant
from kernelmap.session import _NUMPY as NUMPY
from kernelmap.spec import BuildSpec
from kernelmap.vocabulary import DTYPES

Array = np.ndarray[Any, Any]
MOST_CASES = 6
_FREE = (1, 2, 3, 8, 13)
_ROWS = (1, 2, 9, 17)


@dataclass(frozen=True)
class Case:
    """One set of dims, params and inputs."""

    label: str
    spec: BuildSpec
    contract: Contract
    dims: Mapping[str, int]
    arrays: Mapping[str, Array | None]

    def oracle(self) -> dict[str, Array]:
        module, _, name = self.contract.oracle.partition(":")
        given = {key: array.copy() for key, array in self.arrays.items() if array is not None}
        return dict(getattr(importlib.import_module(module), name)(self.spec, **given))


def cases_of(contract: Contract, item: KernelMap, variant: Variant, seed: int) -> Iterator[Case]:
    """Cases that fit contract, map and variant guards, spread over the possible shapes; at least one if any exists."""
    rng = np.random.default_rng(seed)
    fitting = list(_all_dims(contract, item, variant))
    rng.shuffle(fitting)
    made = 0
    for dims in fitting:
        params = _params(contract, dims, rng)
        if params is None:
            continue
        spec = BuildSpec(
            provider=item.id,
            group=contract.equivalence_group,
            op=contract.op,
            variant=variant.name,
            dtypes={name: _dtype(contract, port) for name, port in contract.ports.items()},
            dims={name: size for name, size in dims.items() if name in contract.static_dims},
            params=params,
            prepared={port: hook.prepared_format for hook in item.weight_preparation for port in hook.weights},
            arithmetic=dict(contract.arithmetic),
            isa=(),
        )
        arrays = {
            port.name: _array(contract, port, dims, rng)
            for port in (*contract.inputs, *contract.weights, *contract.state)
        }
        yield Case(f"{dims} {params}", spec, contract, dims, arrays)
        made += 1
        if made == MOST_CASES:
            return


def _all_dims(contract: Contract, item: KernelMap, variant: Variant) -> Iterator[dict[str, int]]:
    multiples = alignment(contract)
    names = list(contract.dims)
    choices: list[list[int]] = []
    for name in names:
        if name in contract.dynamic_dims:
            found = list(_ROWS)
        else:
            step = multiples.get(name, 1)
            limit = item.constraints.dims.get(name)
            if limit is not None and limit.multiple_of is not None:
                step = int(np.lcm(step, limit.multiple_of))
            found = [step, 2 * step] if step > 1 else list(_FREE)
            if limit is not None:
                found = [size for size in found if not limit.refusal(name, size)]
        choices.append(found)
    for sizes in itertools.product(*choices):
        dims = dict(zip(names, sizes, strict=True))
        if variant.admits(dims):
            yield dims


def _params(contract: Contract, dims: Mapping[str, int], rng: np.random.Generator) -> dict[str, Any] | None:
    """Random params for which the contract's requirements hold; None if some tries find none."""
    for _ in range(40):
        params = {param.name: _param(param, rng) for param in contract.params}
        env = Env(names={**dims, **params})
        if all(predicate.evaluate(env) for predicate in contract.requires):
            return params
    return None


def _param(param: Param, rng: np.random.Generator) -> Any:
    if param.type == "enum":
        return str(rng.choice(param.choices))
    if param.type == "bool":
        return bool(rng.integers(2))
    if param.type == "int":
        low = int(param.min) if param.min is not None else 1
        return int(rng.integers(low, low + 4))
    return float(np.float32(rng.uniform(0.5, 3.0)))


def _dtype(contract: Contract, port: Port) -> str:
    return contract.dtype_vars[port.dtype][0] if port.dtype in contract.dtype_vars else port.dtype


def _shape(port: Port, dims: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(item if isinstance(item, int) else item.evaluate(dims) for item in port.shape)


def _array(contract: Contract, port: Port, dims: Mapping[str, int], rng: np.random.Generator) -> Array | None:
    dtype, shape = _dtype(contract, port), _shape(port, dims)
    if port.optional and rng.integers(3) == 0:
        return None
    if dtype not in DTYPES:
        from kernelmap_providers.formats import random_rows

        return random_rows(dtype, rng, shape)
    if dtype == "bf16":
        return (rng.standard_normal(shape).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    if port.domain is not None and np.issubdtype(NUMPY[dtype], np.integer):
        low, high = port.domain.min.evaluate(dims), port.domain.max.evaluate(dims)
        return rng.integers(low, high + 1, shape).astype(NUMPY[dtype])
    return (rng.standard_normal(shape) * rng.choice([0.01, 1.0, 30.0])).astype(NUMPY[dtype])


def run_provider(item: KernelMap, variant: Variant, case: Case, threads: int) -> dict[str, Array]:
    """Outputs of a provider, through its builder as `bind` loads it; scratch filled with a pattern and guarded."""
    contract = case.contract
    run = load_runner(item, contract, case.spec)
    hooks = {port: hook for hook in item.weight_preparation for port in hook.weights}
    arguments: list[Any] = []
    for port in (*contract.inputs, *contract.weights, *contract.state):
        array = case.arrays[port.name]
        if port.name in hooks and array is not None:
            hook = hooks[port.name]
            shape = _shape(port, case.dims)
            made = load_function(hook.function)(
                array, source_format=port.dtype, prepared_format=hook.prepared_format, shape=shape
            )
            assert made.nbytes == hook.prepared_bytes.evaluate(case.spec.dims)
            arguments.append(made)
        else:
            arguments.append(array.copy() if array is not None else None)
    outputs = {
        port.name: np.full(_shape(port, case.dims), 0x5A, np.dtype(NUMPY[_dtype(contract, port)]))
        for port in contract.outputs
    }
    guarded = [_scratch(scratch.size_bytes.evaluate({**case.dims, "threads": threads})) for scratch in item.scratch]
    status = run(*arguments, *outputs.values(), *(view for _, view in guarded), threads)
    assert status == 0, f"{item.id} refused row {status - 1}"
    for scratch, (whole, view) in zip(item.scratch, guarded, strict=True):
        behind = whole[view.ctypes.data - whole.ctypes.data + view.nbytes :]
        assert (behind == 0xA5).all(), f"{item.id} wrote behind its scratch {scratch.name}"
    for port, given in zip((*contract.inputs, *contract.weights), arguments, strict=False):
        array = case.arrays[port.name]
        if array is not None and isinstance(given, np.ndarray):
            assert np.array_equal(given.view(np.uint8), array.view(np.uint8)), (
                f"{item.id} wrote to its input {port.name}"
            )
    return outputs


def _scratch(size: int) -> tuple[Array, Array]:
    whole = np.full(size + 4096 + 256, 0xA5, np.uint8)
    start = -whole.ctypes.data % 4096
    return whole, whole[start : start + size]


def compare(contract: Contract, expected: Mapping[str, Array], actual: Mapping[str, Array], label: str) -> None:
    """Equal bytes, or within the contract's tolerance."""
    for port in contract.outputs:
        want, have = np.asarray(expected[port.name]), actual[port.name]
        assert want.dtype == have.dtype and want.shape == have.shape, f"{label}: {port.name} has another form"
        if contract.equivalence.kind == "byte_exact":
            same = want.view(np.uint8).tobytes() == have.view(np.uint8).tobytes()
            wrong = int((want != have).sum())
            assert same, f"{label}: {port.name} differs in {wrong} of {want.size} values"
        else:
            np.testing.assert_allclose(
                have, want, rtol=contract.equivalence.rtol, atol=contract.equivalence.atol, err_msg=label
            )
