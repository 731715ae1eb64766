"""The packed layouts by id."""

from __future__ import annotations

from kernelmap_providers.packed.base import PackedFormat
from kernelmap_providers.packed.q4_k import Q4_K_X8

PACKED_FORMATS: dict[str, PackedFormat] = {layout.name: layout for layout in (Q4_K_X8,)}
"""Every packed layout."""
