"""Weight preparation of the bucketed blocks: expert-major packed x8 tensors, made once a tensor at bind."""

from __future__ import annotations

import hashlib

import numpy as np

from kernelmap.vocabulary import FORMATS
from kernelmap_providers.arguments import Array
from kernelmap_providers.formats import first_bad_row
from kernelmap_providers.formats.packed_x8 import BLOCK_BYTES, GROUP_ROWS, pack
from kernelmap_providers.packed.weight import PackedWeight, aligned_bytes

LAYOUT_VERSION = 1


def ck_moe_prepare_q4k_gate_up_vnni_x8(
    weight: Array, *, source_format: str, prepared_format: str, shape: tuple[int, ...]
) -> PackedWeight:
    """Packs a q4_k gate or up tensor ``[E, I, H]`` as q4_k_x8. Raises ValueError as `prepare`."""
    return prepare(weight, source_format, prepared_format, shape)


def ck_moe_prepare_q5k_down_x8(
    weight: Array, *, source_format: str, prepared_format: str, shape: tuple[int, ...]
) -> PackedWeight:
    """Packs a q5_k down tensor ``[E, H, I]`` as q5_k_x8. Raises ValueError as `prepare`."""
    return prepare(weight, source_format, prepared_format, shape)


def prepare(weight: Array, source_format: str, prepared_format: str, shape: tuple[int, ...]) -> PackedWeight:
    """Packs ``uint8 [E, rows, row_bytes]`` of ``source_format`` expert by expert.

    Raises ValueError if the formats do not fit, if the bytes are not those of ``shape``, or if a block scale is NaN or
    infinite (the message names expert and row).
    """
    if f"{source_format}_x8" != prepared_format or prepared_format not in BLOCK_BYTES:
        raise ValueError(f"{source_format} cannot be prepared as {prepared_format}")
    experts, rows, values = shape
    if weight.shape != (experts, rows, FORMATS[source_format].row_bytes(values)):
        raise ValueError(f"{list(weight.shape)} bytes are no {source_format} tensor {list(shape)}")
    bad = first_bad_row(source_format, weight)
    if bad is not None:
        raise ValueError(f"expert {bad[0]} row {bad[1]}: a block scale is NaN or infinite")
    group_bytes = values // FORMATS[source_format].block_values * BLOCK_BYTES[prepared_format]
    packed = (experts, rows // GROUP_ROWS, group_bytes)
    data = aligned_bytes(int(np.prod(packed))).reshape(packed)
    digest = hashlib.sha256(f"{source_format} {shape}".encode())
    for expert in range(experts):
        digest.update(np.ascontiguousarray(weight[expert]).data)
        data[expert] = pack(prepared_format, weight[expert])
    data.flags.writeable = False
    return PackedWeight(prepared_format, LAYOUT_VERSION, digest.hexdigest(), shape, data)


def demand_layout(weight: PackedWeight, layout: str, shape: tuple[int, ...]) -> Array:
    """The data of a weight that is packed as ``layout`` with this shape. Raises TypeError for anything else."""
    if not isinstance(weight, PackedWeight):
        raise TypeError(f"the kernel takes a weight prepared as {layout}, not {type(weight).__name__}")
    if (weight.layout, weight.version, weight.dims) != (layout, LAYOUT_VERSION, shape):
        found = f"{weight.layout} v{weight.version} {list(weight.dims)}"
        raise TypeError(f"the kernel takes {layout} v{LAYOUT_VERSION} {list(shape)}, and the weight is {found}")
    return weight.data
