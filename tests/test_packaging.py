"""The wheel works by itself in an empty folder: data files, entry point, type marker."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODEL = ROOT / "tests/data/models/qwen35moe.gguf"
SHIPPED = (".py", ".json", ".html", ".css", ".js")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the unpacked wheel, built from a copy of the sources."""
    base = tmp_path_factory.mktemp("wheel")
    source = base / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "src", "providers", "kernel_maps", "circuits"):
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(path, source / name)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q", "-w", str(base), "."]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    wheel = next(base.glob("kernelmap-*.whl"))
    target = base / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    return target


def run(installed: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(installed)}
    command = [sys.executable, "-P", "-m", "kernelmap", *arguments]
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)


def test_wheel_holds_all_data(installed: Path) -> None:
    for folder, pattern in (("kernel_maps", "**/*.json"), ("circuits", "*.json")):
        shipped = {str(path.relative_to(ROOT / folder)) for path in (ROOT / folder).glob(pattern)}
        packed = {
            str(p.relative_to(installed / "kernelmap" / folder))
            for p in (installed / "kernelmap" / folder).glob(pattern)
        }
        assert packed == shipped and shipped
    sources = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("*") if path.suffix in SHIPPED}
    missing = {name for name in sources if not (installed / name).is_file()}
    assert not missing
    kernels = {str(path.relative_to(ROOT / "providers")) for path in (ROOT / "providers").rglob("*.py")}
    assert not {name for name in kernels if not (installed / name).is_file()}
    assert (installed / "kernelmap" / "py.typed").is_file() and (
        installed / "kernelmap_providers" / "py.typed"
    ).is_file()


def test_resolve_with_and_without_a_model(installed: Path, tmp_path: Path) -> None:
    with_model = run(installed, tmp_path, "resolve", "qwen35_moe", "--model", str(MODEL), "--phase", "prefill")
    assert with_model.returncode == 0, with_model.stderr
    assert "> moe_swiglu_expert_forward_q4k_q5k" in with_model.stdout
    reference = run(installed, tmp_path, "resolve", "qwen35_moe", "--phase", "prefill")
    assert reference.returncode == 0, reference.stderr
    assert "layers 0-39" in reference.stdout and "decode  " not in reference.stdout


def test_why_not_names_the_missing_route(installed: Path, tmp_path: Path) -> None:
    provider = "moe_swiglu_shared_forward_q8_0_gated_packed"
    done = run(installed, tmp_path, "explain", "qwen35_moe", "shared_experts", "--why-not", provider)
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert f"{provider} is not selected for shared_experts (prefill): a candidate, and no route allows it." in said


def test_installed_files_are_the_ones_that_ran(installed: Path, tmp_path: Path) -> None:
    done = run(installed, tmp_path, "show", "gemm_nt_fp32")
    assert done.returncode == 0 and str(installed) in done.stdout
