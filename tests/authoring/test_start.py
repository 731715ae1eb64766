"""Starting quickly: what `lock` and `diff` must not do, and the reading of imports that this rests on."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from environment import ROOT

from kernelmap.source_digests import _imports, _nodes

HEAVY = {
    "numba", "torch", "llvmlite", "numpy", "scipy", "gguf", "safetensors", "jsonschema", "rich", "jinja2",
    "kernelmap_providers", "kernelmap.bind", "kernelmap.session", "kernelmap.certify", "kernelmap.testing",
    "kernelmap.scaffold", "asyncio", "multiprocessing", "http", "urllib.request",
}  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [
        ("diff", "host:avx2_2core", "host:neoverse_v2_server"),
        ("lock", "--host", "avx2_2core", "--output", "a.lock.json"),
        ("rule", "KM203"),
    ],
    ids=lambda words: words[0],
)
def test_a_static_command_imports_nothing_heavy_and_parses_few_modules_whole(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    code = (
        "import sys, ast\n"
        "parsed, real = [], ast.parse\n"
        "ast.parse = lambda text, *more, **named: (parsed.append(len(text)), real(text, *more, **named))[1]\n"
        "from kernelmap.cli.main import run\n"
        f"code = run({list(words)!r})\n"
        "print(*sys.modules, sep=',', file=sys.stderr)\n"
        "print(sum(parsed), file=sys.stderr)\n"
        "sys.exit(code)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *_, modules, parsed = done.stderr.strip().splitlines()
    assert HEAVY & set(modules.split(",")) == set()
    whole = sum(path.stat().st_size for path in (ROOT / "providers").rglob("*.py"))
    assert int(parsed) < whole / 4, "lock and diff read what modules import, not what is in them"


def test_both_sides_of_a_diff_read_each_module_once(capsys: pytest.CaptureFixture[str]) -> None:
    from kernelmap.cli.main import run

    _imports.cache_clear()
    assert run(["diff", "host:avx2_2core", "host:neoverse_v2_server"]) == 0
    info = _imports.cache_info()
    assert 0 < info.misses <= len(list((ROOT / "providers").rglob("*.py"))) + 20


def imports(nodes: object) -> set[str]:
    return {ast.dump(node) for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "text",
    [
        "import a\nfrom b import c\n",
        "from a import (  # b)\n    c,\n    d,\n)\n",
        "from a import (b, c  # )\n, d)\n",
        "if x:\n    import a\nelse: import b\n",
        "x = 1; import a\n",
        "import a, b as c; import d\n",
        "from a \\\n    import b\n",
        "import a \\\n    , b\n",
        "from . import a\nfrom ..b import c\nfrom.import d\nfrom .import e\nfrom . x import f\n",
        "from módulo import ñ\nimport ß\n",
        "def f():\n\tfrom a import b\n",
        "try:\n    import a\nexcept ImportError:\n    from b import *\n",
        "class A:\n    import a\n    match 1:\n        case 1:\n            import b\n",
        "async def f():\n    async with x as y:\n        import a\n",
        "import a  # (comment\nfrom b import c  # and (another)\n",
        "import importlib\nimportlib.import_module('a')\nif 1:import b\n",
        "import a\r\nfrom b import (\r\n c,\r\n)\r\n",
        "import a\rimport b\r",
        "\fimport a\n",
        "lambda: 1\nimport a\n",
        "from a import(b)\n",
        "while 1:\n  import\ta\n",
        "from\ta\timport\tb\n",
        "",
    ],
)
def test_imports_are_those_of_the_syntax_tree(text: str) -> None:
    assert imports(_nodes(text.encode())) == imports(ast.walk(ast.parse(text)))


def test_imports_of_every_module_of_the_project_are_those_of_the_syntax_tree() -> None:
    for path in [*(ROOT / "src").rglob("*.py"), *(ROOT / "providers").rglob("*.py")]:
        text = path.read_bytes()
        assert imports(ast.walk(ast.parse(text))) <= imports(_nodes(text)), path


def test_a_docstring_can_only_add_imports() -> None:
    text = b'"""Prose.\n\nimport nothing\n"""\nimport a\n'
    assert imports(ast.walk(ast.parse(text))) < imports(_nodes(text))


def test_a_file_that_is_no_python_has_a_name() -> None:
    from kernelmap.source_digests import _read

    with pytest.raises(SyntaxError):
        _imports(b"import_module(\n", "p")
    assert _read("p.q", Path(__file__)).imports >= {"ast", "kernelmap.source_digests"}
