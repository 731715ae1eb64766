"""Weight preparation of the expert blocks, under the names that maps carry: packed x8 tensors, expert by expert."""

from __future__ import annotations

from kernelmap_providers.arguments import Array
from kernelmap_providers.packed.weight import PackedWeight
from kernelmap_providers.preparation.hooks import prepare_x8


def ck_moe_prepare_q4k_gate_up_vnni_x8(
    weight: Array, *, source_format: str, prepared_format: str, shape: tuple[int, ...]
) -> PackedWeight:
    """Packs a q4_k gate or up tensor ``[E, I, H]`` as q4_k_x8. Raises ValueError as `prepare_x8`."""
    if source_format != "q4_k":
        raise ValueError(f"{source_format} is no q4_k gate or up tensor")
    return prepare_x8(weight, source_format=source_format, prepared_format=prepared_format, shape=shape)
