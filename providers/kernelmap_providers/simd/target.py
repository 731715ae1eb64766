"""Which instruction form a host gets: the one place where CPU features are read."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm
from numba.core import config as numba_config

config: Any = numba_config
"""Numba's settings are made at run time, so their stubs know none of them."""


@dataclass(frozen=True, slots=True)
class Form:
    """One way to emit the vector operations. All forms compute the same bytes."""

    name: str
    lanes: int
    """int32 lanes of a vector: weight rows side by side in a packed tile (a multiple of 8)."""
    wide_dot: bool
    """True where one step adds four byte products into an int32 lane; False where products gather in int16 first."""
    bias: int
    """128 where a dot step reads its weights as unsigned bytes, so that signed weights are stored plus 128; else 0."""
    registers: int
    """Vector registers of the machine, for the choice of tile sizes."""
    features: tuple[str, ...]
    """LLVM features that the form needs, all of them."""
    arch: str
    """Prefix of the LLVM triple that the form can be compiled for; empty for any."""


FORMS: dict[str, Form] = {
    form.name: form
    for form in (
        Form("avx512vnni", 16, True, 128, 32, ("avx512bw", "avx512dq", "avx512f", "avx512vl", "avx512vnni"), "x86_64"),
        Form("avxvnni", 8, True, 128, 16, ("avx2", "avxvnni", "f16c"), "x86_64"),
        Form("avx2", 8, False, 0, 16, ("avx2", "f16c"), "x86_64"),
        Form("neon_dotprod", 8, True, 0, 32, ("dotprod", "neon"), "aarch64"),
        Form("portable", 8, True, 0, 16, (), ""),
    )
}
"""The forms, best first. ``portable`` is plain LLVM IR and runs anywhere."""


def best_form(features: Collection[str]) -> Form:
    """The first form whose features all are in ``features`` (LLVM's names)."""
    return next(form for form in FORMS.values() if set(form.features) <= set(features))


def compiled_features() -> frozenset[str]:
    """Features that Numba compiles for: the host's, or those of ``NUMBA_CPU_FEATURES`` and ``NUMBA_CPU_NAME``.

    A generic CPU name without a feature list means that nothing is known beyond the architecture's baseline.
    """
    if config.CPU_FEATURES is not None:
        return frozenset(part[1:] for part in config.CPU_FEATURES.split(",") if part.startswith("+"))
    if config.CPU_NAME == "generic":
        return frozenset()
    return frozenset(name for name, present in llvm.get_host_cpu_features().items() if present)


def host_form(isa: Collection[str] | None = None) -> Form:
    """The form to build with: the best one that the compiler targets, within ``isa`` where the caller limits it."""
    features = compiled_features()
    return best_form(features if not isa else features & set(isa))
