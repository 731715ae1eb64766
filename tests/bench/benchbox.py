"""A small world on disk whose providers really run: a quick, a slow and a wrong one of the same group, in numpy."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelmap import map_checks, source_digests, sources
from kernelmap.cli.main import run

Json = dict[str, Any]
GROUP = "benchbox_fp32"
HEAD = "import time\n\nimport numpy as np\n\nfrom benchbox import product\n\n\ndef matmul(spec):\n"
BODY = (
    "    def run(x, weight, y, threads):\n        y[...] = product.product(x, weight)\n{extra}        return 0\n\n"
    "    return run\n"
)
SOURCES = {
    "__init__.py": "",
    "product.py": (
        "import numpy as np\n\n\ndef product(x, weight):\n    total = np.zeros((len(x), len(weight)), np.float32)\n"
        "    for column in range(x.shape[1]):\n        total += x[:, column, None] * weight[None, :, column]\n"
        "    return total\n"
    ),
    "oracle.py": (
        "from benchbox import product\n\n\ndef matmul(spec, x, weight):\n    return {'y': product.product(x, weight)}\n"
    ),
    "quick.py": HEAD + BODY.format(extra=""),
    "slow.py": HEAD + BODY.format(extra="        time.sleep(0.002)\n"),
    "wrong.py": HEAD + BODY.format(extra="        y[0, 0] = np.nextafter(y[0, 0], np.float32(9))\n"),
    "broken.py": "def matmul(spec):\n    def run(x, y, threads):\n        return 0\n\n    return run\n",
}


def contract(**changes: Any) -> Json:
    value = {
        "schema_version": 1,
        "equivalence_group": GROUP,
        "op": "benchbox_matmul",
        "summary": "toy",
        "dims": {"R": "tokens", "H": "width", "W": "columns"},
        "dynamic_dims": ["R"],
        "inputs": [{"name": "x", "dtype": "fp32", "shape": ["R", "H"]}],
        "weights": [{"name": "weight", "dtype": "fp32", "shape": ["W", "H"]}],
        "outputs": [{"name": "y", "dtype": "fp32", "shape": ["R", "W"]}],
        "equivalence": {"kind": "byte_exact"},
        "oracle": "benchbox.oracle:matmul",
    }
    return {**value, **changes}


def kernel_map(name: str, priority: int, status: str = "production", **changes: Any) -> Json:
    value = {
        "schema_version": 1,
        "id": f"benchbox_{name}",
        "op": "benchbox_matmul",
        "summary": "toy",
        "selection": {
            "status": status, "priority": priority, "equivalence_group": GROUP, "phases": ["prefill", "decode"],
        },
        "impl": {"backend": "numpy", "function": f"benchbox.{name}:matmul", "variants": [{"name": "serial"}]},
    }  # fmt: skip
    return {**value, **changes}


def circuit() -> Json:
    def op(name: str, source: str) -> Json:
        return {
            "name": name, "op": "benchbox_matmul", "equivalence_group": GROUP, "inputs": {"x": source},
            "weights": {"weight": f"blk.{{layer}}.{name}.weight"}, "outputs": {"y": f"{name}_out"},
        }  # fmt: skip

    return {
        "schema_version": 1, "id": "benchbox", "summary": "toy", "architectures": ["benchbox"], "dims": {"H": 24},
        "dynamic_dims": ["R"], "inputs": [{"name": "x", "dtype": "fp32", "shape": ["R", "H"]}],
        "blocks": {"main": {"ops": [op("up", "x"), op("down", "up_out")]}},
        "layers": {"count": 2, "rules": [{"block": "main"}]},
        "outputs": [{"name": "y", "value": "down.y", "scope": "layer"}],
        "storage": {"source": "made up", "architecture": "benchbox", "tensors": [
            {"name": f"blk.{{layer}}.{name}.weight", "format": "fp32", "shape": ["H", "H"]} for name in ("up", "down")
        ]},
    }  # fmt: skip


@dataclass(frozen=True)
class Box:
    """The world's folder, and how to run commands in it."""

    root: Path

    @property
    def maps(self) -> Path:
        return self.root / "kernel_maps"

    @property
    def site(self) -> Path:
        return self.root / "providers" / "benchbox"

    @property
    def circuit(self) -> Path:
        return self.root / "circuits" / "benchbox.json"

    @property
    def record(self) -> Path:
        return self.root / "bench.json"

    def map(self, name: str) -> Path:
        return self.maps / f"benchbox_{name}.json"

    def add(self, value: Mapping[str, Any]) -> None:
        write(self.maps / f"{value['id']}.json", value)

    def edit(self, path: Path, change: Callable[[Json], object]) -> None:
        value = json.loads(path.read_text(encoding="utf-8"))
        change(value)
        write(path, value)

    def run(self, *arguments: str) -> int:
        forget()
        return run([*arguments, "--maps", str(self.maps)])

    def bench(self, *flags: str, target: str = GROUP) -> int:
        """Few, small, quick cases; a record in ``record``."""
        small = ["--rounds", "7", "--tokens", "3", "--threads", "1", "--copies", "2", "--output", str(self.record)]
        shape = ["--shape", "H=24", "--shape", "W=8"] if target == GROUP else []
        return self.run("bench", target, *small, *shape, *flags)


def write(path: Path, value: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def forget() -> None:
    """Drops what this process knows of provider packages, their sources and the world's modules."""
    sources.provider_packages.cache_clear()
    map_checks._registered.cache_clear()
    source_digests.installed_sources.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "benchbox"]:
        del sys.modules[name]


@contextmanager
def world(root: Path) -> Iterator[Box]:
    """Two providers of one group: slow in production, quick a candidate above it."""
    box = Box(root)
    box.site.mkdir(parents=True)
    for name, text in SOURCES.items():
        (box.site / name).write_text(text, encoding="utf-8")
    about = root / "providers" / "benchbox-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: benchbox\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[kernelmap.providers]\nbenchbox = benchbox\n")
    box.add(kernel_map("slow", 100))
    box.add(kernel_map("quick", 200, "candidate"))
    write(box.maps / "contracts" / f"{GROUP}.json", contract())
    write(box.circuit, circuit())
    (box.maps / "evidence").mkdir()
    sys.path.insert(0, str(root / "providers"))
    forget()
    try:
        yield box
    finally:
        sys.path.remove(str(root / "providers"))
        forget()
