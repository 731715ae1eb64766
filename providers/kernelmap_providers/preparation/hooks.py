"""The preparation hooks that maps name."""

from __future__ import annotations

import hashlib
import math

import numpy as np

from kernelmap.vocabulary import FORMATS
from kernelmap_providers.arguments import Array
from kernelmap_providers.formats import first_bad_row
from kernelmap_providers.packed.layouts import PACKED_FORMATS, pack_rows
from kernelmap_providers.packed.weight import PackedWeight, aligned_bytes
from kernelmap_providers.preparation.store import Entry, Store, configured_store
from kernelmap_providers.simd.block import GROUP_ROWS


def prepare_x8(
    weight: Array, *, source_format: str, prepared_format: str, shape: tuple[int, ...], store: Store | None = None
) -> PackedWeight:
    """Packs ``uint8 [..., rows, row_bytes]`` of ``source_format`` as the layout ``prepared_format``, matrix by matrix.

    ``shape`` is in values. The result lies in memory, or is a read-only map of a file in ``store`` (by default the one
    that the environment configures). Beyond the result no more memory is taken than one matrix may need when its rows
    are not contiguous. Raises ValueError if the formats do not fit, if the bytes are not those of ``shape``, or if a
    block factor is NaN or infinite (the message names the row).
    """
    layout = PACKED_FORMATS.get(prepared_format)
    if layout is None or layout.source != source_format:
        raise ValueError(f"{source_format} cannot be prepared as {prepared_format}")
    rows, values = shape[-2:]
    if weight.shape != (*shape[:-1], FORMATS[source_format].row_bytes(values)):
        raise ValueError(f"{list(weight.shape)} bytes are no {source_format} tensor {list(shape)}")
    bad = first_bad_row(source_format, weight)
    if bad is not None:
        raise ValueError(f"row {', '.join(map(str, bad))}: a block factor is NaN or infinite")
    matrices = math.prod(shape[:-2])
    packed = (matrices, -(-rows // GROUP_ROWS), layout.group_bytes(values))
    source = source_digest(weight, source_format, shape)
    entry = Entry(prepared_format, layout.version, source, shape, math.prod(packed))
    store = store if store is not None else configured_store()

    def fill(out: Array) -> None:
        groups = out.reshape(packed)
        for index, matrix in enumerate(weight.reshape(matrices, *weight.shape[-2:])):
            pack_rows(layout, matrix, groups[index])

    data = store.load_or_make(entry, fill) if store is not None else _in_memory(entry, fill)
    data = data.reshape(packed)
    data.flags.writeable = False
    return PackedWeight(prepared_format, layout.version, source, shape, data)


def _in_memory(entry: Entry, fill: Store.Fill) -> Array:
    data = aligned_bytes(entry.nbytes)
    fill(data)
    return data


def source_digest(weight: Array, source_format: str, shape: tuple[int, ...]) -> str:
    """SHA-256 over format, shape and the stored bytes, row by row in order."""
    digest = hashlib.sha256(f"{source_format} {shape}".encode())
    for matrix in weight.reshape(-1, *weight.shape[-2:]):
        digest.update(np.ascontiguousarray(matrix).data)
    return digest.hexdigest()
