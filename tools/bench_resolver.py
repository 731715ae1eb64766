"""How long loading, checking and resolving take on synthetic registries, and how that grows.

    python tools/bench_resolver.py [--sizes 1000,3000,10000] [--ops 5000] [--repeat 3] [--format text|json]

Each registry has five maps a group: a production floor, one below it, one for an ISA that the host lacks, one with a
preparation hook over its budget, and a candidate. Two circuits of ``ops`` ops each are resolved: ``layered`` (100 ops
in each of ops / 100 layers, as models are built: layers share decisions) and ``distinct`` (one layer whose ops are all
different, the worst case). Times are the best of ``repeat`` runs in seconds, after the page cache is warm.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from kernelmap.circuit.loading import CircuitFile, read_circuit
from kernelmap.circuit.storage import reference_inventory
from kernelmap.errors import KernelmapError
from kernelmap.models.host import Host
from kernelmap.registry import Registry, read_registry
from kernelmap.resolver import resolve

T = TypeVar("T")
Json = dict[str, Any]
MAPS_A_GROUP = 5
OPS_A_LAYER = 100
WIDTH = 256
HOST = Host(
    schema_version=1, name="bench", arch="x86_64", cpu="generic", isa=("avx2", "fma"), cores=2, threads=2,
    memory_bytes=0,
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """Times in seconds for one size of registry."""

    maps: int
    groups: int
    ops: int
    load: float
    """Reading, validating and checking every file."""
    resolve_layered: float
    resolve_distinct: float


def contract(group: int) -> Json:
    """A small contract of group ``group``."""
    return {
        "$schema": "contract.schema.json",
        "schema_version": 1,
        "equivalence_group": f"group_{group}",
        "op": "matmul",
        "summary": "Synthetic: y = x · weight.",
        "dims": {"R": "tokens", "H": "width"},
        "dynamic_dims": ["R"],
        "inputs": [{"name": "x", "dtype": "fp32", "shape": ["R", "H"]}],
        "weights": [{"name": "weight", "dtype": "q4_k", "shape": ["H", "H"]}],
        "outputs": [{"name": "y", "dtype": "fp32", "shape": ["R", "H"]}],
        "arithmetic": {"activation": "q8_k", "accumulator": "fp32", "block_order": "ascending"},
        "equivalence": {"kind": "byte_exact"},
        "oracle": "kernelmap_providers.reference.bench:matmul",
    }


def kernel_map(group: int, rank: int) -> Json:
    """The map of a group at a rank from 0 to 4."""
    value: Json = {
        "$schema": "kernel_map.schema.json",
        "schema_version": 1,
        "id": f"map_{group}_{rank}",
        "op": "matmul",
        "summary": "Synthetic.",
        "selection": {
            "status": "candidate" if rank == 4 else "production",
            "priority": 100 + 10 * rank,
            "equivalence_group": f"group_{group}",
            "phases": ["prefill", "decode"],
        },
        "requires": {"device": "cpu", "isa": ["avx512vnni"] if rank == 2 else []},
        "constraints": {"dims": {"H": {"min": 64, "multiple_of": 64}}},
        "scratch": [{"name": "workspace", "size_bytes": "align64(R * q8_k_row_bytes(H)) * threads", "alignment": 64}],
        "impl": {
            "backend": "numba",
            "function": f"kernelmap_providers.bench:matmul_{group}_{rank}",
            "variants": [
                {
                    "name": "parallel",
                    "shape_constraints": {"R_min": 8},
                    "fallback": "serial",
                    "kill_switch": "BENCH_OFF",
                },
                {"name": "serial"},
            ],
        },
    }
    if rank == 3:
        hook = {
            "function": f"kernelmap_providers.bench:prepare_{group}",
            "weights": ["weight"],
            "prepared_format": "q4_k_x8",
            "prepared_bytes": "H * q4_k_row_bytes(H)",
            "max_total_bytes": 64,
        }
        value["weight_preparation"] = [hook]
    return value


def circuit(name: str, layers: int, ops: int, groups: int) -> Json:
    """A chain of ``ops`` ops in each of ``layers`` layers."""
    chain = [
        {
            "name": f"op{index}",
            "op": "matmul",
            "equivalence_group": f"group_{index % groups}",
            "inputs": {"x": "x" if index == 0 else f"op{index - 1}.y"},
            "weights": {"weight": f"blk.{{layer}}.op{index}.weight"},
        }
        for index in range(ops)
    ]
    tensors = [{"name": f"blk.{{layer}}.op{i}.weight", "format": "q4_k", "shape": ["H", "H"]} for i in range(ops)]
    return {
        "schema_version": 1,
        "id": name,
        "summary": "Synthetic.",
        "architectures": ["bench"],
        "dims": {"H": WIDTH},
        "dynamic_dims": ["R"],
        "inputs": [{"name": "x", "dtype": "fp32", "shape": ["R", "H"], "scope": "layer"}],
        "blocks": {"main": {"ops": chain}},
        "layers": {"count": layers, "rules": [{"block": "main"}]},
        "outputs": [{"name": "y", "value": f"op{ops - 1}.y", "scope": "layer"}],
        "storage": {"source": "synthetic", "architecture": "bench", "tensors": tensors},
    }


def write(path: Path, value: Json) -> None:
    """Writes a value as people do, indented."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_registry(folder: Path, maps: int) -> int:
    """Writes ``maps`` maps and their contracts; returns the number of groups."""
    groups = max(1, maps // MAPS_A_GROUP)
    (folder / "contracts").mkdir(parents=True)
    for group in range(groups):
        write(folder / "contracts" / f"group_{group}.json", contract(group))
        for rank in range(MAPS_A_GROUP):
            write(folder / f"map_{group}_{rank}.json", kernel_map(group, rank))
    return groups


def best(repeat: int, work: Callable[[], T]) -> tuple[float, T]:
    """Shortest time of several runs, and the last result."""
    times: list[float] = []
    for _ in range(repeat):
        start = time.perf_counter()
        result = work()
        times.append(time.perf_counter() - start)
    return min(times), result


def load(folder: Path) -> Registry:
    """The registry of a folder; every problem would be a defect of this tool."""
    loaded = read_registry([folder], shipped=False)
    if loaded.problems:
        raise KernelmapError(loaded.problems)
    return loaded.registry


def time_resolve(folder: Path, name: str, layers: int, ops: int, registry: Registry, groups: int, repeat: int) -> float:
    """Seconds to elaborate and resolve a circuit, plan included."""
    path = folder / f"{name}.json"
    write(path, circuit(name, layers, ops, groups))
    item: CircuitFile = read_circuit(str(path))
    inventory = reference_inventory(item.circuit, item.source)
    seconds, plan = best(repeat, lambda: resolve(item.circuit, item.source, inventory, registry, HOST))
    if sum(len(decision.layers) for decision in plan.decisions) != 2 * layers * ops:
        raise AssertionError("the plan does not cover every op in both phases")
    return seconds


def measure(maps: int, ops: int, repeat: int) -> Row:
    """One row of the table."""
    with tempfile.TemporaryDirectory(prefix="kernelmap-bench-") as name:
        folder = Path(name)
        groups = write_registry(folder / "maps", maps)
        load_seconds, registry = best(repeat, lambda: load(folder / "maps"))
        layer_ops = min(ops, OPS_A_LAYER)
        layered = time_resolve(folder, "layered", ops // layer_ops, layer_ops, registry, groups, repeat)
        distinct = time_resolve(folder, "distinct", 1, ops, registry, groups, repeat)
    return Row(maps, groups, ops, load_seconds, layered, distinct)


def print_table(rows: Sequence[Row]) -> None:
    """A table with each time and its growth against the row before, relative to linear."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="times in seconds; × is growth over linear growth in maps since the row above")
    for title in ("maps", "groups", "load + check", "×", "ops", "resolve, layered", "resolve, distinct"):
        table.add_column(title, justify="right")
    before: Row | None = None
    for row in rows:
        growth = f"{row.load / before.load / (row.maps / before.maps):.2f}" if before else ""
        table.add_row(
            f"{row.maps:,}", f"{row.groups:,}", f"{row.load:.3f}", growth, f"{row.ops:,}",
            f"{row.resolve_layered:.3f}", f"{row.resolve_distinct:.3f}",
        )  # fmt: skip
        before = row
    Console().print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--sizes", default="1000,3000,10000", help="numbers of maps")
    parser.add_argument("--ops", type=int, default=5000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--format", choices=("text", "json"), default="text")
    given = parser.parse_args(arguments)
    rows = [measure(int(size), given.ops, given.repeat) for size in given.sizes.split(",")]
    if given.format == "json":
        print(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        print_table(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
