"""Calling providers and oracles directly: no plan, no session."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from kernelmap.bind import load_function, load_runner
from kernelmap.registry import Registry, load_registry
from kernelmap.spec import BuildSpec

Array = np.ndarray[Any, Any]
DATA = Path(__file__).parents[1] / "data"
NUMPY = {"fp32": np.float32, "i32": np.int32}
ROUTED = "moe_swiglu_expert_forward_q4k_q5k"
BUCKETED = "moe_swiglu_expert_forward_q4k_q5k_bucketed"
SHARED = "moe_swiglu_shared_forward_q8_0_gated"
SOFTMAX = "moe_softmax_topk_router_llama_f32"
SIGMOID = "group_limited_topk_router_sigmoid_f32"


@cache
def registry() -> Registry:
    return load_registry()


class Subject:
    """One provider with its dims and params."""

    def __init__(self, map_id: str, dims: Mapping[str, int], params: Mapping[str, Any] | None = None) -> None:
        self.item = registry().maps[map_id]
        self.contract = registry().contracts[self.item.selection.equivalence_group]
        self.dims, self.params = dict(dims), dict(params or {})
        self.hooks = {port: hook for hook in self.item.weight_preparation for port in hook.weights}

    def spec(self, variant: str = "serial") -> BuildSpec:
        return BuildSpec(
            provider=self.item.id,
            group=self.contract.equivalence_group,
            op=self.contract.op,
            variant=variant,
            dtypes={name: port.dtype for name, port in self.contract.ports.items()},
            dims={name: size for name, size in self.dims.items() if name != "R"},
            params=self.params,
            prepared={port: hook.prepared_format for port, hook in self.hooks.items()},
            arithmetic=dict(self.contract.arithmetic),
        )

    def oracle(self, **arrays: Array) -> dict[str, Array]:
        module, _, name = self.contract.oracle.partition(":")
        made: dict[str, Array] = getattr(importlib.import_module(module), name)(self.spec(), **arrays)
        return made

    def prepared(self, port: str, array: Array) -> Any:
        """The port's argument: prepared where the map says so."""
        if port not in self.hooks:
            return array
        declared = self.contract.ports[port]
        shape = tuple(size if isinstance(size, int) else size.evaluate(self.dims) for size in declared.shape)
        hook = self.hooks[port]
        function = load_function(hook.function)
        return function(array, source_format=declared.dtype, prepared_format=hook.prepared_format, shape=shape)

    def call(
        self, arrays: Mapping[str, Any], variant: str = "serial", threads: int = 1
    ) -> tuple[int, dict[str, Array]]:
        """(status, outputs) of the provider; weights are given as stored."""
        run = load_runner(self.item, self.contract, self.spec(variant))
        dims = {**self.dims, "R": len(next(iter(arrays.values())))}
        given = [self.prepared(p.name, arrays[p.name]) if p.name in arrays else None for p in self._read()]
        outputs = {
            port.name: np.full([size.evaluate(dims) for size in port.shape], 77, NUMPY[port.dtype])
            for port in self.contract.outputs
        }
        scratch = [aligned(s.size_bytes.evaluate({**dims, "threads": threads})) for s in self.item.scratch]
        return run(*given, *outputs.values(), *scratch, threads), outputs

    def _read(self) -> list[Any]:
        return [*self.contract.inputs, *self.contract.weights]

    @property
    def variants(self) -> list[str]:
        return [variant.name for variant in self.item.impl.variants]


def aligned(size: int) -> Array:
    raw = np.full(size + 64, 0xA5, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size]
