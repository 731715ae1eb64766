"""Digests of provider sources: a module and all that it imports from provider packages, without importing it."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable
from functools import lru_cache

from kernelmap.models.kernel_map import KernelMap
from kernelmap.sources import module_file, provider_packages


def map_source_digest(item: KernelMap) -> str:
    """``sha256:`` over the transitive sources of every function that a map names."""
    functions = {item.impl.function}
    functions |= {variant.function for variant in item.impl.variants if variant.function is not None}
    functions |= {hook.function for hook in item.weight_preparation}
    return sources_digest(function.partition(":")[0] for function in functions)


def sources_digest(modules: Iterable[str]) -> str:
    """``sha256:`` over names and texts of modules and of all provider modules that they import."""
    found: set[str] = set()
    for module in modules:
        found |= transitive_modules(module)
    digest = hashlib.sha256()
    for name in sorted(found):
        digest.update(name.encode() + b"\0" + module_text(name) + b"\0")
    return "sha256:" + digest.hexdigest()


@lru_cache(maxsize=1024)
def transitive_modules(module: str) -> frozenset[str]:
    """The module and every module of a registered provider package that it imports, directly or not."""
    found: set[str] = set()
    queue = [module]
    while queue:
        name = queue.pop()
        if name not in found:
            found.add(name)
            queue.extend(_imports(name))
    return frozenset(found)


@lru_cache(maxsize=4096)
def module_text(module: str) -> bytes:
    """The module's source; empty if it has none."""
    path = module_file(module)
    return path.read_bytes() if path is not None else b""


@lru_cache(maxsize=4096)
def _imports(module: str) -> tuple[str, ...]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(module_text(module))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    owned = (name for name in names if any(package.owns(name) for package in provider_packages()))
    return tuple(sorted(name for name in owned if module_file(name) is not None))
