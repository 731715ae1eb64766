"""A small world on disk to edit: a provider package, maps, a contract, a circuit and a host profile."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelmap import map_checks, source_digests, sources

Json = dict[str, Any]
GROUP = "toybox_fp32"
SOURCES = {
    "__init__.py": "",
    "fast.py": "from toybox import helper\n\n\ndef matmul(spec):\n    return helper.run\n",
    "plain.py": "def matmul(spec):\n    return None\n",
    "risky.py": "def matmul(spec):\n    return None\n",
    "helper.py": "def run(x, weight, y, threads):\n    return 0\n",
    "oracle.py": "from . import arithmetic\n\n\ndef matmul(x, weight):\n    return arithmetic.product(x, weight)\n",
    "arithmetic.py": "def product(x, weight):\n    return x @ weight.T\n",
    "unrelated.py": "",
}
WIDE = {
    "name": "wide", "requires": ["avx2"], "shape_constraints": {"R_min": 8}, "fallback": "serial",
    "kill_switch": "TOYBOX_NO_WIDE",
}  # fmt: skip


def contract() -> Json:
    return {
        "schema_version": 1,
        "equivalence_group": GROUP,
        "op": "toybox_matmul",
        "summary": "toy",
        "dims": {"R": "tokens", "H": "width"},
        "dynamic_dims": ["R"],
        "inputs": [{"name": "x", "dtype": "fp32", "shape": ["R", "H"]}],
        "weights": [{"name": "weight", "dtype": "fp32", "shape": ["H", "H"]}],
        "outputs": [{"name": "y", "dtype": "fp32", "shape": ["R", "H"]}],
        "arithmetic": {"accumulator": "fp32"},
        "equivalence": {"kind": "byte_exact"},
        "oracle": "toybox.oracle:matmul",
    }


def kernel_map(name: str, priority: int, status: str = "production", **changes: Any) -> Json:
    value = {
        "schema_version": 1,
        "id": f"toybox_{name}",
        "op": "toybox_matmul",
        "summary": "toy",
        "selection": {
            "status": status, "priority": priority, "equivalence_group": GROUP, "phases": ["prefill", "decode"],
        },
        "impl": {"backend": "numpy", "function": f"toybox.{name}:matmul", "variants": [{"name": "serial"}]},
    }  # fmt: skip
    return {**value, **changes}


def circuit() -> Json:
    ops = [
        {
            "name": f"op{index}",
            "op": "toybox_matmul",
            "equivalence_group": GROUP,
            "inputs": {"x": source},
            "weights": {"weight": f"blk.{{layer}}.op{index}.weight"},
            "outputs": {"y": f"op{index}_out"},
        }
        for index, source in enumerate(("x", "op0_out"))
    ]
    return {
        "schema_version": 1,
        "id": "toybox",
        "summary": "toy",
        "architectures": ["toybox"],
        "runtime": {"prefill_chunk": 64},
        "dims": {"H": 64},
        "dynamic_dims": ["R"],
        "inputs": [{"name": "x", "dtype": "fp32", "shape": ["R", "H"], "scope": "layer"}],
        "blocks": {"main": {"ops": ops}},
        "layers": {"count": 3, "rules": [{"block": "main"}]},
        "outputs": [{"name": "y", "value": "op1.y", "scope": "layer"}],
        "storage": {
            "source": "made up",
            "architecture": "toybox",
            "tensors": [
                {"name": f"blk.{{layer}}.op{index}.weight", "format": "fp32", "shape": ["H", "H"]} for index in (0, 1)
            ],
        },
    }


def host(**changes: Any) -> Json:
    value = {
        "schema_version": 1, "name": "toybox_host", "arch": "x86_64", "cpu": "generic", "isa": ["avx2", "fma"],
        "cores": 2, "threads": 2, "memory_bytes": 0,
    }  # fmt: skip
    return {**value, **changes}


@dataclass(frozen=True)
class Box:
    """The world's folder. ``edit`` changes a JSON file of it in place."""

    root: Path

    @property
    def site(self) -> Path:
        return self.root / "providers" / "toybox"

    @property
    def maps(self) -> Path:
        return self.root / "kernel_maps"

    @property
    def circuit(self) -> Path:
        return self.root / "circuits" / "toybox.json"

    @property
    def host(self) -> Path:
        return self.root / "host.json"

    @property
    def flags(self) -> list[str]:
        """Flags that bring the world's maps into a command."""
        return ["--maps", str(self.maps)]

    def map(self, name: str) -> Path:
        return self.maps / f"toybox_{name}.json"

    @property
    def contract(self) -> Path:
        return self.maps / "contracts" / f"{GROUP}.json"

    def edit(self, path: Path, change: Callable[[Json], object]) -> None:
        value = json.loads(path.read_text(encoding="utf-8"))
        change(value)
        write(path, value)


def write(path: Path, value: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def forget() -> None:
    """Drops what this process knows of provider packages and their sources."""
    sources.provider_packages.cache_clear()
    map_checks._registered.cache_clear()
    source_digests.installed_sources.cache_clear()


@contextmanager
def world(root: Path) -> Iterator[Box]:
    """A new world in ``root``, its provider package registered by entry point as an installed one would be."""
    box = Box(root)
    box.site.mkdir(parents=True)
    for name, text in SOURCES.items():
        (box.site / name).write_text(text, encoding="utf-8")
    about = root / "providers" / "toybox-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: toybox\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[kernelmap.providers]\ntoybox = toybox\n")
    fast = kernel_map("fast", 200)
    fast["impl"]["variants"] = [WIDE, {"name": "serial"}]
    for value in (fast, kernel_map("plain", 100), kernel_map("risky", 300, "candidate")):
        write(box.maps / f"{value['id']}.json", value)
    write(box.contract, contract())
    write(box.circuit, circuit())
    write(box.host, host())
    sys.path.insert(0, str(root / "providers"))
    forget()
    try:
        yield box
    finally:
        sys.path.remove(str(root / "providers"))
        forget()
