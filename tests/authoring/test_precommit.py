"""The hook definitions: what they run is a command, and it fails where it must."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml
from environment import ROOT

from kernelmap.cli.main import run

HOOKS = {hook["id"]: hook for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))}
MAP = ROOT / "kernel_maps" / "gemm_nt_fp32.json"


def entry(name: str, *files: str) -> int:
    """Runs a hook as pre-commit does: entry, args, then the files, if it passes them."""
    hook = HOOKS[name]
    words = [*shlex.split(hook["entry"]), *hook.get("args", ())]
    assert words[0] == "kernelmap"
    return run([*words[1:], *(files if hook.get("pass_filenames", True) else ())])


def test_hooks_have_what_precommit_requires() -> None:
    assert list(HOOKS) == ["kernelmap-check", "kernelmap-lock"]
    for hook in HOOKS.values():
        assert {"id", "name", "entry", "language", "files"} <= set(hook) and hook["language"] == "python"


@pytest.mark.parametrize(
    ("path", "check", "lock"),
    [
        ("kernel_maps/a.json", True, True),
        ("acme_kernels/kernel_maps/contracts/a.json", True, True),
        ("acme/circuits/a.json", True, True),
        ("package.json", False, False),
        ("kernel_maps.json", False, False),
        ("kernelmap.lock.json", False, True),
        ("acme_kernels/scale.py", False, True),
        ("old_circuits/a.json", False, False),
    ],
)
def test_hooks_run_for_the_files_that_matter(path: str, check: bool, lock: bool) -> None:
    assert bool(re.search(HOOKS["kernelmap-check"]["files"], path)) is check
    assert bool(re.search(HOOKS["kernelmap-lock"]["files"], path)) is lock


def test_check_passes_what_is_right_and_stops_what_is_not(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    contract, circuit = ROOT / "kernel_maps/contracts/gemm_nt.json", ROOT / "circuits/qwen35_moe.json"
    assert entry("kernelmap-check", str(MAP), str(contract), str(circuit)) == 0
    bad = tmp_path / "kernel_maps" / MAP.name
    bad.parent.mkdir()
    bad.write_text(MAP.read_text().replace('"production"', '"produktion"'))
    assert entry("kernelmap-check", str(MAP), str(bad)) == 1
    assert "KM104" in capsys.readouterr().err


def test_lock_passes_a_fresh_lock_and_stops_drift(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert entry("kernelmap-lock") == 1
    capsys.readouterr()
    assert run(["lock", "qwen35_moe", "--host", "avx2_2core", "--output", "kernelmap.lock.json"]) == 0
    assert entry("kernelmap-lock", "ignored.json") == 0
    text = Path("kernelmap.lock.json").read_text()
    Path("kernelmap.lock.json").write_text(re.sub(r'"sha256:[0-9a-f]{64}"', f'"sha256:{"0" * 64}"', text))
    assert entry("kernelmap-lock") == 1
    assert "KM8" in capsys.readouterr().err
