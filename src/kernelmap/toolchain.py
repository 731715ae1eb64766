"""Versions of what makes the machine code; found without importing any of it."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Mapping

_OF_BACKEND = {"numba": ("numba", "llvmlite"), "torch": ("torch",)}


def toolchain() -> dict[str, str]:
    """Version of Python and of each package that compiles or runs kernels, of those that are installed."""
    found = {"python": platform.python_version()}
    for name in ("numpy", "numba", "llvmlite", "torch"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def toolchain_gap(backend: str, before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Which versions that a backend rests on differ, e.g. ``numba 0.61.0 then, 0.62.0 now``; empty if none."""
    names = ("python", "numpy", *_OF_BACKEND.get(backend, ()))
    differing = [name for name in names if before.get(name) != now.get(name)]
    return ", ".join(f"{name} {before.get(name, 'unknown')} then, {now.get(name, 'absent')} now" for name in differing)
