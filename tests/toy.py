"""The toy circuit: its registry, a model file, and an independent statement of what it computes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from kernelmap import map_checks, sources
from kernelmap.circuit.loading import CircuitFile, read_circuit
from kernelmap.inventory import read_inventory
from kernelmap.models.inventory import Inventory
from kernelmap.registry import Registry, load_registry

TESTS = Path(__file__).parent
CIRCUIT = TESTS / "data" / "circuits" / "toy_hybrid.json"
MAPS = TESTS / "data" / "toy_maps"
Array = np.ndarray[Any, Any]


@contextmanager
def toy_packages() -> Iterator[None]:
    """Registers the toy provider package through its entry point, as an installed package would be."""
    sys.path.insert(0, str(TESTS / "toy_site"))
    sources.provider_packages.cache_clear()
    map_checks._registered.cache_clear()
    try:
        yield
    finally:
        sys.path.remove(str(TESTS / "toy_site"))
        sources.provider_packages.cache_clear()
        map_checks._registered.cache_clear()


def toy_registry() -> Registry:
    return load_registry((MAPS,), shipped=False)


def toy_value() -> dict[str, Any]:
    value: dict[str, Any] = json.loads(CIRCUIT.read_text(encoding="utf-8"))
    return value


def toy_circuit(value: Mapping[str, Any] | None = None, folder: Path | None = None) -> CircuitFile:
    if value is None:
        return read_circuit(str(CIRCUIT))
    assert folder is not None
    path = folder / "toy_hybrid.json"
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")
    return read_circuit(str(path))


def weights(seed: int = 3) -> dict[str, Array]:
    rng = np.random.default_rng(seed)

    def make(*shape: int) -> Array:
        return (0.5 * rng.standard_normal(shape)).astype(np.float32)

    made = {"token_embd.weight": make(11, 8), "rope_freqs.weight": make(4), "vision.patch.weight": make(2)}
    made |= {"blk.0.norm.weight": make(8), "blk.1.decay.weight": make(8) * np.float32(0.3)}
    made |= {"blk.3.plain.weight": make(8), "blk.2.unused.weight": make(1)}
    for layer in range(3):
        made |= {f"blk.{layer}.gate_up.weight": make(12, 8), f"blk.{layer}.down.weight": make(8, 6)}
        if layer != 1:
            made[f"blk.{layer}.query.weight"] = make(8, 8)
    return made


def write_model(path: Path, tensors: Mapping[str, Array], metadata: Mapping[str, Any] | None = None) -> Inventory:
    import gguf

    writer = gguf.GGUFWriter(path, "toyhybrid")
    facts = {"block_count": 4, "embedding_length": 8, "attention.window": [3, 1, 2, 1], "softcap": 2.5}
    for key, value in (metadata if metadata is not None else facts).items():
        if isinstance(value, list):
            writer.add_array(f"toyhybrid.{key}", value)
        elif isinstance(value, float):
            writer.add_float32(f"toyhybrid.{key}", value)
        else:
            writer.add_uint32(f"toyhybrid.{key}", value)
    for name, array in tensors.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return read_inventory(path)


def chain(row: Array, column: Array) -> np.float32:
    """The fp32 dot product of two vectors, first product first."""
    total = np.float32(0)
    for a, b in zip(row, column, strict=True):
        total = np.float32(total + a * b)
    return total


def linear(x: Array, weight: Array) -> Array:
    return np.array([[chain(row, column) for column in weight] for row in x], np.float32)


def statement(w: Mapping[str, Array], tokens: Array, cache: str = "fp32", cap: float = 2.5) -> dict[str, Array]:
    """The whole toy model over all tokens at once, written without the framework: one fp32 chain a value, so exact."""
    steps, kept = len(tokens), np.float32 if cache == "fp32" else np.float16
    x = w["token_embd.weight"][tokens]
    history = [x]
    angles = np.arange(steps)[:, None] * 10000.0 ** (-np.arange(8) / 8)
    cos = np.cos(angles).astype(np.float32)
    windows = (3, 1, 2, 1)
    for layer in range(3):
        if layer == 1:
            memory, scanned = np.zeros(8, np.float32), np.empty_like(x)
            for row in range(steps):
                memory = memory * w["blk.1.decay.weight"] + x[row]
                scanned[row] = memory
            mixed = x + scanned
        else:
            normed = x * w["blk.0.norm.weight"] if layer == 0 else x * np.float32(1) * np.float32(2)
            held = (linear(normed, w[f"blk.{layer}.query.weight"]) * cos).astype(kept)
            window = windows[layer]
            seen = [held[max(0, r + 1 - window) : r + 1].astype(np.float32).sum(axis=0) for r in range(steps)]
            mixed = x + np.stack(seen)
        gate, up = w[f"blk.{layer}.gate_up.weight"][:6], w[f"blk.{layer}.gate_up.weight"][6:]
        hidden = np.maximum(linear(mixed, gate), 0) * linear(mixed, up)
        x = mixed + linear(hidden, w[f"blk.{layer}.down.weight"])
        history.append(x)
    x = x * w["blk.3.plain.weight"]
    final = x + np.stack(history).sum(axis=0) / np.float32(len(history))
    logits = linear(final, w["token_embd.weight"])
    capped = np.tanh(logits / np.float32(cap)) * np.float32(cap)
    return {"logits": np.tanh(capped / np.float32(1e6)) * np.float32(1e6)}
