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
    ("kernelmap.files", "kernelmap.compiling"),
    ("kernelmap.vocabulary", "kernelmap.toolchain"),
    ("kernelmap.jsonsource", "kernelmap.json_edit", "kernelmap.render"),
    ("kernelmap.expressions", "kernelmap.templates"),
    ("kernelmap.models",),
    ("kernelmap.schemas", "kernelmap.kernel_maps", "kernelmap.circuits", "kernelmap.schema_files", "kernelmap.sources"),
    ("kernelmap.source_digests",),
    ("kernelmap.host", "kernelmap.inventory", "kernelmap.contracts", "kernelmap.map_checks", "kernelmap.policies"),
    ("kernelmap.registry",),
    ("kernelmap.circuit",),
    ("kernelmap.checks", "kernelmap.staleness", "kernelmap.budget", "kernelmap.residency"),
    ("kernelmap.resolver",),
    ("kernelmap.explain", "kernelmap.explanation", "kernelmap.decision_text", "kernelmap.check", "kernelmap.scaffold"),
    ("kernelmap.lock", "kernelmap.diff", "kernelmap.diff_text", "kernelmap.sides", "kernelmap.sarif"),
    ("kernelmap.reach", "kernelmap.audit", "kernelmap.audit_maps", "kernelmap.audit_text"),
    ("kernelmap.report",),
    ("kernelmap.foreign",),
    ("kernelmap.planner", "kernelmap.weight_checks"),
    ("kernelmap.bind",),
    ("kernelmap.session", "kernelmap.recorded"),
    ("kernelmap.certify",),
    ("kernelmap.bench",),
    ("kernelmap.promotion",),
    ("kernelmap.tracing",),
    ("kernelmap.ops",),
    ("kernelmap.testing",),
    ("kernelmap.cli", "kernelmap.__main__"),
)
LAZY_ONLY = {"numba", "torch", "llvmlite"}
TORCH_LAZILY = "kernelmap.ops"
"""The one package of the framework that may import torch, and only when one of its functions runs."""
PROVIDER_MAY = {"kernelmap.spec", "kernelmap.vocabulary", "kernelmap.compiling"}


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


def eager_imports(path: Path) -> set[str]:
    """What importing a module imports: not what stands in its functions, or is for type checkers only."""
    names: set[str] = set()
    queue: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while queue:
        node = queue.pop()
        typing_only = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif not typing_only and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            queue.extend(ast.iter_child_nodes(node))
    return names


def framework_files() -> list[Path]:
    return sorted(SRC.rglob("*.py"))


def test_eager_imports_are_those_that_run(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        "from typing import TYPE_CHECKING\nimport os\ntry:\n    import numba\nfinally:\n    pass\n"
        "if TYPE_CHECKING:\n    import torch\nclass C:\n    import llvmlite\n"
        "    def f(self):\n        import torch\n"
    )
    assert eager_imports(path) == {"typing.TYPE_CHECKING", "os", "numba", "llvmlite"}
    assert "torch" in imports(path)


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
        if name.partition(".")[0] in LAZY_ONLY:
            torch_op = (own + ".").startswith(TORCH_LAZILY + ".") and name.partition(".")[0] == "torch"
            assert torch_op and name not in eager_imports(path), f"{own} imports {name}"


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
    ["diff", "host:avx2_2core", "host:neoverse_v2_server"],
    ["audit"],
    ["audit", "--format", "html"],
    ["report", "--format", "json"],
    ["check", "--format", "sarif"],
    ["demote", "gemv_fp32", "--reason", "a trial", "--dry-run"],
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
