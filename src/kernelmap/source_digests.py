"""Digests of provider sources: a module and all that it imports from provider packages, without importing it."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from kernelmap.models.contract import Contract
from kernelmap.models.kernel_map import KernelMap
from kernelmap.sources import ProviderPackage, provider_packages

_DYNAMIC = frozenset({"import_module", "__import__"})
_BEGINS = re.compile(rb"^[ \t]*(?:from\b[^\n('\"#]*?\bimport\b|import\b)", re.MULTILINE)
_IMPORT = re.compile(rb"^[ \t]*(from\b[^\n('\"#]*?\bimport\b[ \t]*(?:\([^)]*\)|[^\n(]+)|import\b[^\n(]+)", re.MULTILINE)
_ODD = re.compile(rb"import_module|__import__|[;:][ \t]*(?:from|import)\b|\\\r?\n|\r(?!\n)|\f")


@dataclass(slots=True)
class SourceTree:
    """The sources of some provider packages, read once: the installed ones, or those of another revision.

    An edit on disk after the first digest goes unseen: take a new tree for a new look.
    """

    packages: tuple[ProviderPackage, ...]
    _modules: dict[str, _Module | None] = field(default_factory=dict)
    _closures: dict[str, frozenset[str]] = field(default_factory=dict)
    _digests: dict[frozenset[str], str] = field(default_factory=dict)
    """By modules: most maps of a family need the same ones."""

    def map_digest(self, item: KernelMap) -> str:
        """``sha256:`` over the transitive sources of every function that a map names."""
        functions = {item.impl.function} if item.impl.function is not None else set()
        functions |= {variant.function for variant in item.impl.variants if variant.function is not None}
        functions |= {hook.function for hook in item.weight_preparation}
        return self.digest(function.partition(":")[0] for function in functions)

    def oracle_digest(self, contract: Contract) -> str:
        """``sha256:`` over the transitive sources of a contract's reference."""
        return self.digest([contract.oracle.partition(":")[0]])

    def digest(self, modules: Iterable[str]) -> str:
        """``sha256:`` over names and texts of modules and of all provider modules that they need."""
        found = frozenset[str]().union(*(self.transitive(module) for module in modules))
        if found not in self._digests:
            made = hashlib.sha256()
            for name in sorted(found):
                read = self._module(name)
                made.update(name.encode() + b"\0" + (read.text if read is not None else b"") + b"\0")
            self._digests[found] = "sha256:" + made.hexdigest()
        return self._digests[found]

    def transitive(self, module: str) -> frozenset[str]:
        """The module, the packages that it lies in, and every provider module that these import, directly or not."""
        if module not in self._closures:
            self._closures[module] = frozenset(self._walk(module))
        return self._closures[module]

    def _walk(self, module: str) -> set[str]:
        found: set[str] = set()
        named, opened = {module}, set[str]()
        queue = [module]
        while queue:
            name = queue.pop()
            read = self._module(name)
            if name not in found:
                found.add(name)
                queue += self._needs(name)
                named |= read.imports if read is not None else frozenset()
            # What a package imports by a computed name counts where something imports the package itself, not where
            # it is only passed on the way to another module: its functions are not called then.
            if read is not None and read.dynamic and name in named and name not in opened:
                opened.add(name)
                queue += self._below(read.dynamic)
        return found

    def _needs(self, name: str) -> Iterator[str]:
        parts = name.split(".")
        for count in range(1, len(parts)):
            if self._module(parent := ".".join(parts[:count])) is not None:
                yield parent
        if (read := self._module(name)) is not None:
            yield from (item for item in sorted(read.imports) if self._module(item) is not None)

    def _below(self, prefixes: Iterable[str]) -> Iterator[str]:
        """Every module directly in the packages of these names."""
        for prefix in prefixes:
            read = self._module(prefix)
            if read is not None and read.path.name == "__init__.py":
                yield from (f"{prefix}.{path.stem}" for path in sorted(read.path.parent.glob("*.py")))

    def _module(self, name: str) -> _Module | None:
        if name not in self._modules:
            path = self._file(name)
            self._modules[name] = _read(name, path) if path is not None else None
        return self._modules[name]

    def _file(self, name: str) -> Path | None:
        for package in self.packages:
            if package.owns(name) and package.folder is not None:
                base = package.folder.joinpath(*name.removeprefix(package.name).strip(".").split("."))
                for path in (base.with_suffix(".py"), base / "__init__.py"):
                    if path.is_file():
                        return path
        return None


@dataclass(frozen=True, slots=True)
class _Module:
    path: Path
    text: bytes
    imports: frozenset[str]
    """Full names of what it imports, each name of ``from a import b`` as ``a.b`` too."""
    dynamic: tuple[str, ...]
    """Packages from which it imports by a computed name."""


def _read(name: str, path: Path) -> _Module:
    text = path.read_bytes()
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    try:
        imports, dynamic = _imports(text, package)
    except SyntaxError as error:
        error.filename = str(path)
        raise
    return _Module(path, text, imports, dynamic)


@lru_cache(maxsize=4096)
def _imports(text: bytes, package: str) -> tuple[frozenset[str], tuple[str, ...]]:
    """What a module of a package imports by name, and from where by computed names.

    Kept for the process: the two sides of a diff are the same text but for a few modules.
    """
    imports: set[str] = set()
    dynamic: set[str] = set()
    for node in _nodes(text):
        if isinstance(node, ast.Import):
            imports |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, package)
            imports |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Call) and node.args and _called(node) in _DYNAMIC:
            literal, start = _text(node.args[0])
            if literal:
                imports.add(start)
            else:
                dynamic.add(start.rpartition(".")[0] or package)
    return frozenset(imports), tuple(sorted(dynamic))


def _nodes(text: bytes) -> Iterator[ast.AST]:
    """The nodes of a module that may be imports.

    Parsing whole modules is most of what ``lock`` would do, so only lines that are imports are parsed; where anything
    else might be one (a computed name, a second statement on a line, a continued line), the whole module is. An import
    in a docstring counts as one: a digest then covers more than it must, never less.
    """
    if not _ODD.search(text):
        found = [match.group(1) for match in _IMPORT.finditer(text)]
        if len(found) == len(_BEGINS.findall(text)):
            try:
                yield from ast.parse(b"\n".join(found)).body
                return
            except SyntaxError:
                pass  # as for a bracket in a comment between names
    yield from ast.walk(ast.parse(text))


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    base = parts[: len(parts) - node.level + 1]
    return ".".join([*base, *([node.module] if node.module else [])])


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _text(node: ast.expr) -> tuple[bool, str]:
    """(whether it is a literal string, its text or how it begins)."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return True, node.value
    if isinstance(node, ast.JoinedStr) and node.values and isinstance(first := node.values[0], ast.Constant):
        return False, str(first.value)
    return False, ""


@lru_cache(maxsize=1)
def installed_sources() -> SourceTree:
    """The sources of the registered provider packages, as this process first sees them."""
    return SourceTree(provider_packages())


def map_source_digest(item: KernelMap) -> str:
    """``sha256:`` over the transitive sources of every function that a map names, as installed."""
    return installed_sources().map_digest(item)
