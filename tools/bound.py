"""One operation bound as a user binds it: a model file, a circuit, the shipped registry, resolve, bind."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from kernelmap.bind import BoundOp, bind
from kernelmap.circuit.loading import read_circuit
from kernelmap.host import probe_host
from kernelmap.inventory import read_inventory
from kernelmap.models.policy import Pin, Policy, PolicyRoute
from kernelmap.registry import load_registry
from kernelmap.resolver import resolve
from kernelmap.vocabulary import FORMATS, GGML_TYPES, Phase

Bytes = npt.NDArray[np.uint8]


def bound_gemm(storage: str, stored: list[Bytes], k: int, provider: str, phase: Phase) -> list[BoundOp]:
    """The bound op of ``gemm_nt`` for every copy of a weight ``[N, row_bytes]``, by one provider in one phase."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        _write_model(path / "bench.gguf", storage, stored, k)
        circuit = read_circuit(str(_write_circuit(path)))
        model = read_inventory(path / "bench.gguf")
        registry = load_registry()
        policy = Policy(
            routes=(PolicyRoute(op="gemm", phase=phase, allow=provider),),
            pin=(Pin(op="gemm", phase=phase, id=provider),),
            evidence="ignore",
        )
        plan = resolve(circuit.circuit, circuit.source, model, registry, probe_host(), policy)
        bound = bind(plan, circuit, registry, model, environ={})
        ops = bound.steps[phase]
        assert {op.map.id for op in ops} == {provider}
        return list(ops)


def call_of(op: BoundOp, x: Any, y: Any, threads: int) -> Callable[[], int]:
    """A call of a bound op with its scratch allocated beforehand, as a session's arena does."""
    dims = {**op.instance.shared.dims, "R": len(x), "threads": threads}
    scratch = [_aligned(item.size_bytes.evaluate(dims)) for item in op.map.scratch]
    variant = next(v for v in op.variants if v.admits(dims))
    weight, run = op.weights["weight"], variant.run
    return lambda: run(x, weight, y, *scratch, threads)


def _aligned(size: int) -> Bytes:
    raw = np.zeros(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size]


def _write_model(path: Path, storage: str, stored: list[Bytes], k: int) -> None:
    number = next(n for n, item in GGML_TYPES.items() if item.name == storage)
    assert stored[0].shape[-1] == FORMATS[storage].row_bytes(k)
    writer = gguf.GGUFWriter(path, "bench")
    writer.add_uint32("bench.block_count", len(stored))
    for layer, rows in enumerate(stored):
        writer.add_tensor(f"blk.{layer}.w.weight", rows, raw_dtype=gguf.GGMLQuantizationType(number))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_circuit(folder: Path) -> Path:
    op = {
        "name": "gemm",
        "op": "gemm_nt",
        "equivalence_group": "{weight}_weight_{weight.act}_internal_fp32_output",
        "inputs": {"x": "x"},
        "weights": {"weight": "blk.{layer}.w.weight"},
    }
    circuit = {
        "schema_version": 1,
        "id": "bench",
        "summary": "One GEMM a layer.",
        "architectures": ["bench"],
        "config": {"n": {"key": "bench.block_count", "type": "int"}},
        "dims": {"K": "shape(blk.0.w.weight)[1]"},
        "dynamic_dims": ["R"],
        "inputs": [{"name": "x", "dtype": "fp32", "shape": ["R", "K"], "scope": "layer"}],
        "blocks": {"gemm": {"ops": [op]}},
        "layers": {"count": "config.n", "rules": [{"block": "gemm"}]},
        "outputs": [{"name": "y", "value": "gemm.y", "scope": "layer"}],
    }
    path = folder / "bench.json"
    path.write_text(json.dumps(circuit), encoding="utf-8")
    return path
