"""Source digests: what a module needs, and nothing else, read without importing anything."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kernelmap.registry import load_registry
from kernelmap.source_digests import SourceTree, installed_sources, map_source_digest
from kernelmap.sources import ProviderPackage

FILES = {
    "__init__.py": "",
    "a.py": "from pkg.b import x\nimport pkg.deep.c as c, os\n",
    "b.py": "from . import d\nx = 1\n",
    "d.py": "def f():\n    from .deep import e\n    return e\n",
    "lonely.py": "",
    "deep/__init__.py": "from pkg.deep.shared import s\n",
    "deep/c.py": "from ..sibling import y\n",
    "deep/e.py": "",
    "deep/shared.py": "s = 1\n",
    "sibling.py": "y = 1\n",
    "lazy/__init__.py": (
        "import importlib\n\n\ndef get(name):\n    return importlib.import_module(f'pkg.lazy.{name}')\n"
    ),
    "lazy/one.py": "",
    "lazy/two.py": "import pkg.lonely\n",
    "user.py": "from pkg import lazy\n",
    "passer.py": "import pkg.lazy.one\n",
    "named.py": "import importlib\nm = importlib.import_module('pkg.lonely')\n",
    "loop_a.py": "import pkg.loop_b\n",
    "loop_b.py": "import pkg.loop_a\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "pkg" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "pkg"


def tree(folder: Path) -> SourceTree:
    return SourceTree((ProviderPackage("pkg", folder),))


@pytest.mark.parametrize(
    ("module", "needs"),
    [
        ("pkg.lonely", "lonely"),
        ("pkg.a", "a b d deep deep.c deep.e deep.shared sibling"),
        ("pkg.user", "user lazy lazy.one lazy.two lazy.__init__ lonely"),
        ("pkg.passer", "passer lazy lazy.one"),
        ("pkg.named", "named lonely"),
        ("pkg.loop_a", "loop_a loop_b"),
        ("pkg.nowhere", "nowhere"),
    ],
)
def test_what_a_module_needs(folder: Path, module: str, needs: str) -> None:
    wanted = {"pkg", *(f"pkg.{name}" for name in needs.split())}
    assert tree(folder).transitive(module) == wanted
    assert not any(name == "pkg" or name.startswith("pkg.") for name in sys.modules)


@pytest.mark.parametrize("edited", sorted(FILES))
def test_the_digest_changes_with_what_is_needed_and_only_with_that(folder: Path, edited: str) -> None:
    before = tree(folder).digest(["pkg.a"])
    name = "pkg." + edited.removesuffix(".py").removesuffix("__init__").strip("/").replace("/", ".")
    needed = name.rstrip(".") in tree(folder).transitive("pkg.a")
    path = folder / edited
    path.write_text(path.read_text() + "# edited\n")
    assert (tree(folder).digest(["pkg.a"]) != before) == needed


def test_the_digest_does_not_depend_on_where_the_package_lies(folder: Path, tmp_path: Path) -> None:
    before = tree(folder).digest(["pkg.a"])
    moved = tmp_path / "elsewhere"
    folder.rename(moved)
    assert tree(moved).digest(["pkg.a"]) == before


def test_shipped_providers_have_sources() -> None:
    registry = load_registry()
    sources = installed_sources()
    nothing = sources.digest(())
    for item in registry.maps.values():
        assert sources.map_digest(item) == map_source_digest(item) != nothing
        module = item.impl.function.partition(":")[0]
        assert sources.transitive(module) > {module}
    for contract in registry.contracts.values():
        module = contract.oracle.partition(":")[0]
        assert all(not name.startswith("kernelmap_providers.gemm") for name in sources.transitive(module))
