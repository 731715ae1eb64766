"""Which format a type number or dtype name of a model file means."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from kernelmap.vocabulary import FORMATS, GGML_TYPES, Format

SAFETENSORS_DTYPES: Mapping[str, Format] = {
    **{
        dtype: FORMATS[name]
        for dtype, name in (
            ("F64", "fp64"), ("F32", "fp32"), ("F16", "fp16"), ("BF16", "bf16"), ("I64", "i64"), ("I32", "i32"),
            ("I16", "i16"), ("I8", "i8"), ("U8", "u8"), ("U32", "u32"), ("BOOL", "bool"),
        )
    },
    **{
        dtype: Format(dtype.lower(), 1, size)
        for dtype, size in (
            ("U64", 8), ("U16", 2), ("F8_E5M2", 1), ("F8_E4M3", 1), ("F8_E8M0", 1), ("F8_E4M3FNUZ", 1),
            ("F8_E5M2FNUZ", 1), ("C64", 8),
        )
    },
}  # fmt: skip
"""By safetensors' dtype names. The second group is outside the vocabulary: kept under its own name, bound by no op. The
sub-byte dtypes (F4, F6) are refused: the vocabulary has no size for them, and no published model stores them so."""


@lru_cache(maxsize=256)
def ggml_format(number: int) -> Format | None:
    """The format of a ggml type number; None if neither the vocabulary nor the ``gguf`` package knows its size.

    A type that only ``gguf`` knows (IQ4_XS, TQ2_0 ...) is kept under ggml's name, so that the inventory of any
    published model can be read; an op refuses to bind it. A type of unknown size is refused at once, because then
    neither its end nor an overlap can be checked.
    """
    known = GGML_TYPES.get(number)
    if known is not None:
        return known
    import gguf  # costs 0.1 s: only for a file that holds such a type

    try:
        kind = gguf.GGMLQuantizationType(number)
    except ValueError:
        return None
    values, size = gguf.GGML_QUANT_SIZES[kind]
    return Format(kind.name.lower(), int(values), int(size), None, number)


def is_stored_format(name: str) -> bool:
    """Whether some model file can hold this format."""
    if name in FORMATS or any(name == item.name for item in SAFETENSORS_DTYPES.values()):
        return True
    import gguf

    return name.upper() in gguf.GGMLQuantizationType.__members__
