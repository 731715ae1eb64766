"""A small world that runs: right and wrong kernels of two groups, a circuit of two layers with state, and a model."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kernelmap import map_checks, source_digests, sources

Json = dict[str, Any]
MUL, SUM = "box_mul_fp32", "box_sum_fp32"
KERNELS = '''"""Kernels: one right one a group, and wrong ones."""

import numpy as np


def mul(spec):
    def run(x, weight, y, threads):
        if not np.isfinite(x).all():
            return 1 + int(np.argmax(~np.isfinite(x).all(axis=1)))
        y[...] = x * weight
        return 0

    return run


def mul_wrong(spec):
    """One value off by one, in the layer whose weights begin with a negative value."""
    def run(x, weight, y, threads):
        y[...] = x * weight
        if weight[0] < 0 and len(x) > 1:
            y[1, 2] += 1
        return 0

    return run


def mul_zero(spec):
    """Minus zero where there is a zero: equal numbers, other bytes."""
    def run(x, weight, y, threads):
        y[...] = x * weight
        y[...] = np.where(y == 0, np.float32(-0.0), y)
        return 0

    return run


def mul_rude(spec):
    """Writes to its input before it reads it."""
    def run(x, weight, y, threads):
        x[...] = 7
        y[...] = x * weight
        return 0

    return run


def mul_beyond(spec):
    """The right values, and one more behind its output."""
    def run(x, weight, y, threads):
        y[...] = x * weight
        whole = np.lib.stride_tricks.as_strided(y.reshape(-1), (y.size + 1,))
        whole[y.size] = 3
        return 0

    return run


def mul_raises(spec):
    def run(x, weight, y, threads):
        raise ZeroDivisionError("no such luck")

    return run


def mul_refuses(spec):
    def run(x, weight, y, threads):
        return 2

    return run


def mul_gap(spec):
    """Leaves the last row unwritten."""
    def run(x, weight, y, threads):
        y[:-1] = x[:-1] * weight
        return 0

    return run


def total(spec):
    def run(x, memory, y, scratch, threads):
        held = scratch.view(np.float32)
        held[...] = memory
        y[...] = x + held
        memory[...] = y[-1]
        return 0

    return run


def total_near(spec):
    inner = total(spec)

    def run(x, memory, y, scratch, threads):
        inner(x, memory, y, scratch, threads)
        y *= np.float32(1 + 1e-5)
        return 0

    return run


def total_forgets(spec):
    """Right outputs, and a state that is not kept."""
    inner = total(spec)

    def run(x, memory, y, scratch, threads):
        before = memory.copy()
        inner(x, memory, y, scratch, threads)
        memory[...] = before
        return 0

    return run
'''
ORACLES = '''"""References."""

import numpy as np

from . import arithmetic


class Refused(ValueError):
    def __init__(self, row):
        super().__init__(f"row {row}")
        self.row = row


def mul(spec, x, weight):
    bad = ~np.isfinite(x).all(axis=1)
    if bad.any():
        raise Refused(int(np.argmax(bad)))
    return {"y": arithmetic.product(x, weight)}


def total(spec, x, memory):
    y = x + memory
    return {"y": y, "memory": y[-1].copy()}
'''


def contract(group: str) -> Json:
    rows = {"dtype": "fp32", "shape": ["R", "H"]}
    value: Json = {
        "schema_version": 1,
        "equivalence_group": group,
        "op": group.removesuffix("_fp32"),
        "summary": "toy",
        "dims": {"R": "tokens", "H": "width"},
        "dynamic_dims": ["R"],
        "inputs": [{"name": "x", **rows}],
        "outputs": [{"name": "y", **rows}],
    }
    if group == MUL:
        value["weights"] = [{"name": "weight", "dtype": "fp32", "shape": ["H"]}]
        return {**value, "equivalence": {"kind": "byte_exact"}, "oracle": "tracebox.oracles:mul"}
    value["state"] = [{"name": "memory", "dtype": "fp32", "shape": ["H"], "access": "read_write"}]
    return {
        **value,
        "equivalence": {"kind": "tolerance", "rtol": 1e-3, "atol": 1e-6},
        "oracle": "tracebox.oracles:total",
    }


def kernel_map(name: str, function: str, priority: int, status: str = "candidate", **changes: Any) -> Json:
    group = MUL if name.startswith("box_mul") else SUM
    value: Json = {
        "schema_version": 1,
        "id": name,
        "op": group.removesuffix("_fp32"),
        "summary": "toy",
        "selection": {
            "status": status, "priority": priority, "equivalence_group": group, "phases": ["prefill", "decode"],
        },
        "impl": {"backend": "numpy", "function": f"tracebox.{function}", "variants": [{"name": "serial"}]},
    }  # fmt: skip
    if group == SUM:
        value["scratch"] = [{"name": "scratch", "size_bytes": "4 * H"}]
    return {**value, **changes}


WIDE = {"name": "wide", "shape_constraints": {"R_min": 2}, "fallback": "serial", "kill_switch": "BOX_NO_WIDE"}


def maps() -> list[Json]:
    found = [
        kernel_map("box_mul", "kernels:mul", 200, "production"),
        kernel_map("box_mul_plain", "plain:mul", 100, "production"),
        kernel_map("box_mul_diagnostic", "kernels:mul", 10, "diagnostic"),
        kernel_map("box_mul_elsewhere", "kernels:mul", 20, requires={"isa": ["sme2"]}),
        kernel_map("box_mul_small", "kernels:mul", 30, constraints={"dims": {"H": {"max": 2}}}),
        kernel_map("box_mul_decode", "kernels:mul", 40),
        kernel_map("box_sum", "kernels:total", 200, "production"),
        kernel_map("box_sum_near", "kernels:total_near", 100, "production"),
        kernel_map("box_sum_forgets", "kernels:total_forgets", 300),
    ]
    found[0]["impl"]["variants"] = [WIDE, {"name": "serial"}]
    found[5]["selection"]["phases"] = ["decode"]
    wrong = ("wrong", "zero", "rude", "beyond", "raises", "refuses", "gap")
    found += [kernel_map(f"box_mul_{name}", f"kernels:mul_{name}", 300 + i) for i, name in enumerate(wrong)]
    return found


def circuit() -> Json:
    def op(name: str, group: str, source: str, **more: Any) -> Json:
        return {
            "name": name,
            "op": group.removesuffix("_fp32"),
            "equivalence_group": group,
            "inputs": {"x": source},
            **more,
        }

    ops = [
        op("mul", MUL, "carry.x", weights={"weight": "blk.{layer}.mul.weight"}),
        op("sum", SUM, "mul.y", state={"memory": "memory"}),
    ]
    return {
        "schema_version": 1,
        "id": "tracebox",
        "summary": "toy",
        "architectures": ["tracebox"],
        "runtime": {"prefill_chunk": 8},
        "dims": {"H": 4},
        "dynamic_dims": ["R"],
        "inputs": [{"name": "x", "dtype": "fp32", "shape": ["R", "H"]}],
        "carry": [{"name": "x", "dtype": "fp32", "shape": ["R", "H"]}],
        "state": [{"name": "memory", "dtype": "fp32", "shape": ["H"], "update": "replace"}],
        "blocks": {
            "start": {"ops": [op("begin", MUL, "x", weights={"weight": "begin.weight"})], "carry": {"x": "begin.y"}},
            "main": {"ops": ops, "carry": {"x": "sum.y"}},
        },
        "header": "start",
        "layers": {"count": 3, "rules": [{"block": "main"}]},
        "outputs": [{"name": "y", "value": "sum.y", "scope": "layer"}],
    }


WEIGHTS = {
    "begin.weight": np.array([1, 0, 2, 3], np.float32),
    "blk.0.mul.weight": np.array([1, 2, 3, 4], np.float32) / 4,
    "blk.1.mul.weight": np.array([-1, 2, 3, 4], np.float32) / 4,
    "blk.2.mul.weight": np.array([-2, 1, 1, 1], np.float32) / 4,
}


@dataclass(frozen=True)
class Box:
    """The world's folder and the flags that bring it into a command."""

    root: Path

    @property
    def model(self) -> str:
        return str(self.root / "model.gguf")

    @property
    def maps(self) -> Path:
        return self.root / "kernel_maps"

    @property
    def site(self) -> Path:
        return self.root / "providers" / "tracebox"

    @property
    def flags(self) -> list[str]:
        return ["--maps", str(self.maps), "--circuits", str(self.root / "circuits")]

    def map(self, name: str) -> Path:
        return self.maps / f"{name}.json"

    def contract(self, group: str = MUL) -> Path:
        return self.maps / "contracts" / f"{group}.json"

    def edit(self, path: Path, change: Callable[[Json], object]) -> None:
        value = json.loads(path.read_text(encoding="utf-8"))
        change(value)
        write(path, value)


def write(path: Path, value: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def forget() -> None:
    """Drops what this process knows of provider packages, their sources and their code."""
    sources.provider_packages.cache_clear()
    map_checks._registered.cache_clear()
    source_digests.installed_sources.cache_clear()
    for name in [name for name in sys.modules if name == "tracebox" or name.startswith("tracebox.")]:
        del sys.modules[name]


def _model(path: Path) -> None:
    import gguf

    writer = gguf.GGUFWriter(path, "tracebox")
    for name, array in WEIGHTS.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@contextmanager
def world(root: Path) -> Iterator[Box]:
    """A new world in ``root``, its provider package registered by entry point as an installed one would be."""
    box = Box(root)
    box.site.mkdir(parents=True)
    (box.site / "__init__.py").write_text("")
    (box.site / "kernels.py").write_text(KERNELS)
    (box.site / "plain.py").write_text(
        "from tracebox import kernels\n\n\ndef mul(spec):\n    return kernels.mul(spec)\n"
    )
    (box.site / "oracles.py").write_text(ORACLES)
    (box.site / "arithmetic.py").write_text("def product(x, weight):\n    return x * weight\n")
    about = root / "providers" / "tracebox-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: tracebox\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[kernelmap.providers]\ntracebox = tracebox\n")
    for value in maps():
        write(box.map(value["id"]), value)
    for group in (MUL, SUM):
        write(box.contract(group), contract(group))
    write(root / "circuits" / "tracebox.json", circuit())
    (box.maps / "evidence").mkdir()
    _model(Path(box.model))
    sys.path.insert(0, str(root / "providers"))
    forget()
    try:
        yield box
    finally:
        sys.path.remove(str(root / "providers"))
        forget()
