"""The closed vocabularies: storage formats, number types, phases, statuses, devices, ISA features."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Phase(StrEnum):
    """When an op runs: once at start-up, over many tokens, or over one step."""

    INIT = "init"
    PREFILL = "prefill"
    DECODE = "decode"


class Status(StrEnum):
    """What the resolver may do with a provider; there is no implicit status."""

    PRODUCTION = "production"
    CANDIDATE = "candidate"
    DIAGNOSTIC = "diagnostic"
    DEPRECATED = "deprecated"


class Device(StrEnum):
    """Where a provider runs."""

    CPU = "cpu"
    ANY = "any"


@dataclass(frozen=True, slots=True)
class Format:
    """Sizes of a storage format or number type: ``block_bytes`` bytes hold ``block_values`` values of a row."""

    name: str
    block_values: int
    block_bytes: int
    act: str | None = None
    """Activation partner in dot products (``{port.act}`` of the templates); None if the format is no weight format."""
    ggml_type: int | None = None
    """ggml's type number, as GGUF files store it."""
    halves: tuple[int, ...] = ()
    """Byte offsets of a block's fp16 factors."""
    exponent: int | None = None
    """Byte offset of a block's E8M0 exponent (255 is NaN)."""

    def row_bytes(self, values: int) -> int:
        """Bytes of a row of ``values`` values. Raises ValueError unless ``values`` is a multiple of the block."""
        if values < 0 or values % self.block_values:
            raise ValueError(f"a {self.name} row holds a multiple of {self.block_values} values, not {values}")
        return values // self.block_values * self.block_bytes


_FORMATS = (
    Format("fp64", 1, 8, "fp64", 28),
    Format("fp32", 1, 4, "fp32", 0),
    Format("fp16", 1, 2, "fp32", 1),
    Format("bf16", 1, 2, "fp32", 30),
    Format("i8", 1, 1, None, 24),
    Format("i16", 1, 2, None, 25),
    Format("i32", 1, 4, None, 26),
    Format("i64", 1, 8, None, 27),
    Format("u8", 1, 1),
    Format("u32", 1, 4),
    Format("bool", 1, 1),
    Format("q4_0", 32, 18, "q8_0", 2, halves=(0,)),
    Format("q4_1", 32, 20, "q8_1", 3, halves=(0, 2)),
    Format("q5_0", 32, 22, "q8_0", 6, halves=(0,)),
    Format("q5_1", 32, 24, "q8_1", 7, halves=(0, 2)),
    Format("q8_0", 32, 34, "q8_0", 8, halves=(0,)),
    Format("q8_1", 32, 36, None, 9, halves=(0, 2)),
    Format("q2_k", 256, 84, "q8_k", 10, halves=(80, 82)),
    Format("q3_k", 256, 110, "q8_k", 11, halves=(108,)),
    Format("q4_k", 256, 144, "q8_k", 12, halves=(0, 2)),
    Format("q5_k", 256, 176, "q8_k", 13, halves=(0, 2)),
    Format("q6_k", 256, 210, "q8_k", 14, halves=(208,)),
    Format("q8_k", 256, 292, None, 15),
    Format("mxfp4", 32, 17, "q8_0", 39, exponent=0),
    Format("mxfp4_interleaved", 32, 16, "fp32"),
)

FORMATS: dict[str, Format] = {item.name: item for item in _FORMATS}
"""Storage formats and number types by name. ``mxfp4_interleaved`` counts its packed nibbles only: the E8M0 scales are a
tensor of their own (``e8m0``-valued ``u8``)."""

GGML_TYPES: dict[int, Format] = {item.ggml_type: item for item in _FORMATS if item.ggml_type is not None}
"""The formats that GGUF files can hold, by ggml's type number."""

DTYPES = frozenset({"fp64", "fp32", "fp16", "bf16", "i8", "i16", "i32", "i64", "u8", "u32", "bool"})
"""The number types: one value a block, plain numpy arrays."""

ISA_FEATURES = frozenset(
    {
        # x86, by LLVM's names
        "sse2", "sse3", "ssse3", "sse4.1", "sse4.2", "popcnt", "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "avxvnni",
        "avxvnniint8", "avxifma", "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512ifma", "avx512vbmi",
        "avx512vbmi2", "avx512vnni", "avx512bitalg", "avx512vpopcntdq", "avx512bf16", "avx512fp16", "amx-tile",
        "amx-int8", "amx-bf16", "gfni", "vaes", "vpclmulqdq",
        # Arm, by LLVM's names
        "neon", "fp-armv8", "fullfp16", "dotprod", "i8mm", "bf16", "sve", "sve2", "sme", "sme2", "lse",
    }
)  # fmt: skip
"""Every ISA feature a map may ask for; an unknown one is refused."""

WEIGHT_FORMATS = frozenset(name for name, item in FORMATS.items() if item.act is not None)
"""The formats that a weight port may have."""
