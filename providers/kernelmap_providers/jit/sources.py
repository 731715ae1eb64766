"""The transitive sources of a module, digested: what the compiled code of its functions depends on.

Numba's own cache looks at the file of the compiled function only, and serves stale machine code after an edit of a
callee or an intrinsic in another file (measured). So the key covers every module of the same package tree that the
file imports, directly or not.
"""

from __future__ import annotations

import ast
import hashlib
from functools import cache
from importlib.util import find_spec
from pathlib import Path

OWN_PACKAGE = "kernelmap_providers"


@cache
def source_digest(module: str) -> str:
    """SHA-256 (hex) over the names and sources of ``module`` and all it imports from its own or this package."""
    digest = hashlib.sha256()
    for name in sorted(transitive_modules(module)):
        path = _source_path(name)
        digest.update(name.encode() + b"\0" + (path.read_bytes() if path else b"") + b"\0")
    return digest.hexdigest()


def has_sources(module: str) -> bool:
    """Whether ``module`` is an importable Python file, so that its digest means something."""
    return module != "__main__" and _source_path(module) is not None


def transitive_modules(module: str) -> frozenset[str]:
    """``module`` and every module of its top-level package or of this one that it imports, transitively.

    Imports are read from the syntax tree, those inside functions too; nothing is executed.
    """
    roots = {module.partition(".")[0], OWN_PACKAGE}
    found: set[str] = set()
    queue = [module]
    while queue:
        name = queue.pop()
        if name not in found:
            found.add(name)
            queue.extend(_imports(name, frozenset(roots)))
    return frozenset(found)


@cache
def _imports(module: str, roots: frozenset[str]) -> tuple[str, ...]:
    path = _source_path(module)
    if path is None:
        return ()
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.append(node.module)
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return tuple(name for name in names if name.partition(".")[0] in roots and _source_path(name) is not None)


@cache
def _source_path(module: str) -> Path | None:
    """The module's Python file; None for a namespace, an extension or a name that is no module."""
    try:
        spec = find_spec(module)
    except (ModuleNotFoundError, ValueError):
        return None
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    return Path(spec.origin)
