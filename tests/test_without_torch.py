"""Everything but the torch-facing ops works where torch is not installed, and says which extra is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kernelmap.bind import load_function
from kernelmap.errors import BindError

MODELS = Path(__file__).parent / "data" / "models"


def without_torch(code: str) -> subprocess.CompletedProcess[str]:
    blocked = "import sys\nsys.modules['torch'] = None\n" + code
    return subprocess.run([sys.executable, "-c", blocked], capture_output=True, text=True, check=False)


def test_the_main_job_needs_no_torch() -> None:
    arguments = ["run", str(MODELS / "qwen35moe.gguf"), "--inputs", str(MODELS / "qwen35moe.acts.npz")]
    done = without_torch(f"from kernelmap.cli.main import run\nsys.exit(run({arguments!r}))\n")
    assert done.returncode == 0, done.stderr
    assert "executed equals selected" in done.stdout


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "needs_torch.py").write_text("import torch\n\ndef build(spec):\n    return None\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(BindError) as caught:
        load_function("needs_torch:build")
    (problem,) = caught.value.diagnostics
    assert problem.code == "KM509" and "kernelmap[torch]" in problem.help
