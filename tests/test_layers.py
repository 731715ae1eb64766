"""Imports go one way: each module of the framework imports only from layers before its own."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src" / "kernelmap"
PROVIDERS = ROOT / "providers" / "kernelmap_providers"

# First match counts; each layer may import itself and what stands before it.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("kernelmap", "kernelmap.errors", "kernelmap.spec", "kernelmap.rules", "kernelmap.collection"),
    ("kernelmap.vocabulary",),
    ("kernelmap.jsonsource", "kernelmap.render"),
    ("kernelmap.expressions", "kernelmap.templates"),
    ("kernelmap.models",),
    ("kernelmap.schemas", "kernelmap.kernel_maps", "kernelmap.circuits", "kernelmap.schema_files", "kernelmap.sources"),
    ("kernelmap.source_digests",),
    ("kernelmap.host", "kernelmap.inventory", "kernelmap.contracts", "kernelmap.map_checks", "kernelmap.policies"),
    ("kernelmap.registry",),
    ("kernelmap.circuit",),
    ("kernelmap.checks", "kernelmap.budget", "kernelmap.residency"),
    ("kernelmap.resolver",),
    ("kernelmap.explain", "kernelmap.explanation", "kernelmap.decision_text", "kernelmap.check", "kernelmap.scaffold"),
    ("kernelmap.planner", "kernelmap.weight_checks"),
    ("kernelmap.bind",),
    ("kernelmap.session", "kernelmap.recorded"),
    ("kernelmap.certify",),
    ("kernelmap.cli", "kernelmap.__main__"),
)
LAZY_ONLY = {"numba", "torch", "llvmlite"}
PROVIDER_MAY = {"kernelmap.spec", "kernelmap.vocabulary"}


def module_name(path: Path) -> str:
    parts = ["kernelmap", *path.relative_to(SRC).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer_of(module: str) -> int:
    best, found = -1, -1
    for index, names in enumerate(LAYERS):
        for name in names:
            exact = module == name or (name != "kernelmap" and module.startswith(name + "."))
            if exact and len(name) > best:
                best, found = len(name), index
    return found


def imports(path: Path) -> list[str]:
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            assert node.level == 0, f"{path}: relative import"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def framework_files() -> list[Path]:
    return sorted(SRC.rglob("*.py"))


@pytest.mark.parametrize("path", framework_files(), ids=module_name)
def test_imports_point_to_earlier_layers(path: Path) -> None:
    own = module_name(path)
    mine = layer_of(own)
    assert mine >= 0, f"{own} stands in no layer: add it to LAYERS"
    for name in imports(path):
        if name == "kernelmap" or name.startswith("kernelmap."):
            theirs = layer_of(name)
            if theirs < 0:
                theirs = layer_of(name.rpartition(".")[0])
            assert 0 <= theirs <= mine, f"{own} (layer {mine}) imports {name} (layer {theirs})"
        assert not name.startswith("kernelmap_providers"), f"{own} imports a kernel: {name}"
        assert name.partition(".")[0] not in LAZY_ONLY, f"{own} imports {name}"


@pytest.mark.parametrize("path", sorted(PROVIDERS.rglob("*.py")), ids=lambda p: str(p.relative_to(PROVIDERS)))
def test_kernels_import_no_resolver(path: Path) -> None:
    for name in imports(path):
        if name.startswith("kernelmap."):
            assert name in PROVIDER_MAY or name.rpartition(".")[0] in PROVIDER_MAY, f"{path.name} imports {name}"


def test_oracles_import_no_kernel() -> None:
    for path in sorted((PROVIDERS / "reference").rglob("*.py")):
        for name in imports(path):
            allowed = ("kernelmap_providers.reference", "kernelmap_providers.formats")
            if name.startswith("kernelmap_providers"):
                assert name.startswith(allowed), f"{path.name} imports {name}"
            assert name.partition(".")[0] != "numba", f"{path.name} imports numba"


STATIC = [
    ["check"],
    ["list"],
    ["show", "gemm_nt_fp32"],
    ["schema", "contract"],
    ["rule", "KM203"],
    ["host"],
    ["inventory", str(ROOT / "tests/data/models/qwen35moe.gguf")],
    ["resolve", "qwen35_moe"],
    ["resolve", str(ROOT / "tests/data/models/qwen35moe.gguf")],
    ["explain", "qwen35_moe", "routed_experts"],
]


@pytest.mark.parametrize("arguments", STATIC, ids=" ".join)
def test_static_commands_import_neither_numba_nor_torch(arguments: list[str]) -> None:
    code = (
        "import sys\n"
        "from kernelmap.cli.main import run\n"
        f"code = run({arguments!r})\n"
        "heavy = {'numba', 'torch', 'llvmlite', 'numpy'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else code)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
