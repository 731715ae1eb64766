"""One operation bound as a user binds it: a model file, a circuit, the shipped registry, resolve, bind."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from kernelmap.bind import BoundOp, BoundVariant, bind, build_spec, load_runner
from kernelmap.circuit.loading import read_circuit
from kernelmap.host import probe_host
from kernelmap.inventory import read_inventory
from kernelmap.models.plan import PlanVariant
from kernelmap.models.policy import Pin, Policy, PolicyRoute
from kernelmap.registry import load_registry
from kernelmap.resolver import resolve
from kernelmap.vocabulary import FORMATS, GGML_TYPES, Phase

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
GEMM = {
    "name": "bench",
    "op": "gemm_nt",
    "equivalence_group": "{weight}_weight_{weight.act}_internal_fp32_output",
    "inputs": {"x": "x"},
    "weights": {"weight": "blk.{layer}.w.weight"},
}
GEMM_DIMS = {"K": "shape(blk.0.w.weight)[1]"}
GEMM_INPUTS = [{"name": "x", "dtype": "fp32", "shape": ["R", "K"], "scope": "layer"}]


def bound_gemm(storage: str, stored: list[Bytes], k: int, provider: str, phase: Phase) -> list[BoundOp]:
    """The bound op of ``gemm_nt`` for every copy of a weight ``[N, row_bytes]``, by one provider in one phase."""
    assert stored[0].shape[-1] == FORMATS[storage].row_bytes(k)
    tensors = {f"blk.{layer}.w.weight": (storage, rows) for layer, rows in enumerate(stored)}
    return bound_ops(GEMM, GEMM_DIMS, GEMM_INPUTS, tensors, {phase: provider})[phase]


def bound_ops(
    op: Mapping[str, Any], dims: Mapping[str, Any], inputs: list[dict[str, Any]],
    tensors: Mapping[str, tuple[str, Array]], providers: Mapping[Phase, str], metadata: Mapping[str, int] | None = None,
) -> dict[Phase, list[BoundOp]]:  # fmt: skip
    """One circuit op, named ``bench``, in every layer of a model made of ``tensors`` (format, array); each phase by its
    provider. ``metadata`` are further integers that ``dims`` may name as ``config.NAME``.
    """
    with tempfile.TemporaryDirectory() as folder:
        path, metadata = Path(folder), dict(metadata or {})
        _write_model(path / "bench.gguf", tensors, metadata)
        circuit = read_circuit(str(_write_circuit(path, op, dims, inputs, metadata)))
        model = read_inventory(path / "bench.gguf")
        registry = load_registry()
        policy = Policy(
            routes=tuple(PolicyRoute(op="bench", phase=phase, allow=name) for phase, name in providers.items()),
            pin=tuple(Pin(op="bench", phase=phase, id=name) for phase, name in providers.items()),
            evidence="ignore",
        )
        plan = resolve(circuit.circuit, circuit.source, model, registry, probe_host(), policy)
        bound = bind(plan, circuit, registry, model, environ={})
        for phase, name in providers.items():
            assert {item.map.id for item in bound.steps[phase]} == {name}
        return {phase: list(bound.steps[phase]) for phase in providers}


def by_name(op: BoundOp, provider: str) -> BoundOp:
    """``op`` as a diagnostic provider of its group runs it, which no resolution selects: built as bind builds."""
    item, shared = load_registry().maps[provider], op.instance.shared
    assert item.selection.equivalence_group == shared.group and not item.weight_preparation
    isa = tuple(sorted(probe_host().isa))
    variants = tuple(
        BoundVariant(
            PlanVariant(name=v.name, enabled=True), v.guards,
            load_runner(item, shared.contract, build_spec(item, shared, v.name, isa)),
        )
        for v in item.impl.variants
    )  # fmt: skip
    return replace(op, map=item, variants=variants)


def call_of(op: BoundOp, x: Any, y: Any, threads: int) -> Callable[[], int]:
    """A call of a bound GEMM with its scratch allocated beforehand."""
    return call_with(op, {"x": x}, y, threads)


def call_with(op: BoundOp, inputs: Mapping[str, Array], y: Array, threads: int) -> Callable[[], int]:
    """A call of a bound op of one output, in the variant that a session selects and with its scratch allocated
    beforehand, as a session's arena does.
    """
    contract = op.instance.shared.contract
    given = [inputs[port.name] for port in contract.inputs]
    dims = {**op.instance.shared.dims, "R": len(given[0]), "threads": threads}
    scratch = aligned_scratch(op, dims)
    run = next(v for v in op.variants if v.admits(dims)).run
    weights = [op.weights.get(port.name) for port in contract.weights]
    return lambda: run(*given, *weights, y, *scratch, threads)


def aligned_scratch(op: BoundOp, dims: Mapping[str, int]) -> list[Bytes]:
    """The scratch buffers of a bound op for these dims, ``R`` and ``threads`` among them."""
    return [_aligned(item.size_bytes.evaluate(dims)) for item in op.map.scratch]


def _aligned(size: int) -> Bytes:
    raw = np.zeros(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size]


def _write_model(path: Path, tensors: Mapping[str, tuple[str, Array]], metadata: Mapping[str, int]) -> None:
    writer = gguf.GGUFWriter(path, "bench")
    layers = {name.split(".")[1] for name in tensors}
    writer.add_uint32("bench.block_count", len(layers))
    for key, value in metadata.items():
        writer.add_uint32(f"bench.{key}", value)
    for name, (storage, array) in tensors.items():
        number = next(n for n, item in GGML_TYPES.items() if item.name == storage)
        writer.add_tensor(name, array, raw_dtype=gguf.GGMLQuantizationType(number))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_circuit(
    folder: Path, op: Mapping[str, Any], dims: Mapping[str, Any], inputs: list[dict[str, Any]],
    metadata: Mapping[str, int],
) -> Path:  # fmt: skip
    circuit = {
        "schema_version": 1,
        "id": "bench",
        "summary": "One operation a layer.",
        "architectures": ["bench"],
        "config": {name: {"key": f"bench.{key}", "type": "int"}
                   for name, key in {"n": "block_count", **{key: key for key in metadata}}.items()},
        "dims": dict(dims),
        "dynamic_dims": ["R"],
        "ignores": ["blk.{layer}.unread.weight"],
        "inputs": inputs,
        "blocks": {"bench": {"ops": [dict(op)]}},
        "layers": {"count": "config.n", "rules": [{"block": "bench"}]},
        "outputs": [{"name": "y", "value": f"bench.{next(iter(op.get('outputs', {'y': 0})))}", "scope": "layer"}],
    }  # fmt: skip
    path = folder / "bench.json"
    path.write_text(json.dumps(circuit), encoding="utf-8")
    return path
