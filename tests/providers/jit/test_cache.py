"""The cache of compiled code: a second process compiles nothing, an edited callee is compiled again."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from kernelmap_providers.jit.sources import source_digest, transitive_modules

BIND = """
from kernelmap_providers.jit.store import observed
from kernelmap_providers.gemm.packed import packed_gemm
from kernelmap_providers.gemm.unpacked import unpacked_gemm
from kernelmap_providers.packed.layouts import PACKED_OF
from kernelmap_providers.simd.target import FORMS
events = []
with observed(events.append):
    packed_gemm(PACKED_OF["q8_0"], FORMS["portable"], 8, 32)
    unpacked_gemm("q5_1", FORMS["portable"], 8, 32)
print(sum(event.kind == "compiling" for event in events), sum(event.kind == "loaded" for event in events))
"""


def python(code: str, cache: Path, **extra: str) -> str:
    environment = {**os.environ, "KERNELMAP_CACHE_DIR": str(cache), **extra}
    done = subprocess.run([sys.executable, "-W", "error::RuntimeWarning", "-c", textwrap.dedent(code)],
                          env=environment, capture_output=True, text=True, timeout=300, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    compiled, _ = map(int, python(BIND, tmp_path).split())
    assert compiled >= 3
    again, loaded = map(int, python(BIND, tmp_path).split())
    assert again == 0
    assert loaded == compiled


def test_a_damaged_file_is_compiled_again(tmp_path: Path) -> None:
    python(BIND, tmp_path)
    for path in (tmp_path / "jit").glob("*.nbc"):
        path.write_bytes(path.read_bytes()[:100])
    assert int(python(BIND, tmp_path).split()[0]) >= 3
    assert int(python(BIND, tmp_path).split()[0]) == 0


CALLER = """
from kernelmap_providers.jit.compile import entry
from kernelmap_providers_demo.callee import step
@entry
def answer(x: int) -> int:
    return step(x)
"""


def test_an_edited_callee_is_compiled_again(tmp_path: Path) -> None:
    """Numba's own cache would serve the stale code: the edit is in another module."""
    package = tmp_path / "kernelmap_providers_demo"
    package.mkdir()
    (package / "__init__.py").write_text('"""Demo."""\n')
    (package / "caller.py").write_text(CALLER)
    run = "from kernelmap_providers_demo.caller import answer; print(answer(1))"
    places = [str(tmp_path), *sys.path]
    for value in (2, 3):
        source = f"from kernelmap_providers.jit.compile import jit\n@jit\ndef step(x):\n    return x + {value}\n"
        (package / "callee.py").write_text(source)
        shown = python(run, tmp_path / "cache", PYTHONPATH=os.pathsep.join(places), PYTHONDONTWRITEBYTECODE="1")
        assert shown == str(1 + value)


def test_functions_of_a_script_are_never_kept(tmp_path: Path) -> None:
    python("from kernelmap_providers.jit.compile import entry\n@entry\ndef f(x):\n    return x\nf(1)\n", tmp_path)
    assert not list(tmp_path.rglob("*.nbc"))


def test_a_place_that_cannot_be_written_warns(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    code = """
    import warnings
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        from numba import types
        from kernelmap_providers.jit.compile import compiled
        from kernelmap_providers.pool.control import prepare
        compiled(prepare, types.int64, types.int64)
    print(any("not cached" in str(warning.message) for warning in caught))
    """
    assert python(code, blocked) == "True"


def test_transitive_sources_reach_through_imports() -> None:
    modules = transitive_modules("kernelmap_providers.gemm.packed")
    reached = {"simd.emit", "packed.q6_k", "quantize.q8_k"}
    assert {f"kernelmap_providers.{name}" for name in reached} <= modules
    assert "kernelmap_providers.reference.dots" not in modules
    assert source_digest("kernelmap_providers.gemm.packed") != source_digest("kernelmap_providers.gemm.unpacked")
