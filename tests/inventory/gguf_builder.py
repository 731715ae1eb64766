"""Writes GGUF files byte by byte, also ones that no converter would write."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
FP32, Q4_K, Q8_0 = 0, 12, 8
CODES = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIifBQqd", strict=True))


def text(value: str | bytes, length: int | None = None) -> bytes:
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw


def scalar(kind: int, value: object) -> bytes:
    return text(value) if isinstance(value, str | bytes) else struct.pack("<" + CODES[kind], value)


def key_value(key: str | bytes, kind: int, value: object) -> bytes:
    return text(key) + struct.pack("<I", kind) + scalar(kind, value)


def array(key: str, kind: int, items: list[object], length: int | None = None) -> bytes:
    head = text(key) + struct.pack("<IIQ", ARRAY, kind, len(items) if length is None else length)
    return head + b"".join(scalar(kind, item) for item in items)


def tensor(name: str | bytes, dims: tuple[int, ...], kind: int, offset: int, count: int | None = None) -> bytes:
    """``dims`` fastest first, as GGUF has them."""
    head = text(name) + struct.pack("<I", len(dims) if count is None else count)
    return head + struct.pack(f"<{len(dims)}Q", *dims) + struct.pack("<IQ", kind, offset)


ARCHITECTURE = key_value("general.architecture", STRING, "toy")


@dataclass
class Gguf:
    """A file of two small tensors unless told otherwise."""

    keys: list[bytes] = field(default_factory=lambda: [ARCHITECTURE])
    tensors: list[bytes] = field(default_factory=lambda: [tensor("a", (32, 2), Q8_0, 0), tensor("b", (4,), FP32, 96)])
    data: bytes = bytes(128)
    magic: bytes = b"GGUF"
    version: bytes = struct.pack("<I", 3)
    tensor_count: int | None = None
    key_count: int | None = None
    alignment: int = 32

    def header(self) -> bytes:
        tensors = len(self.tensors) if self.tensor_count is None else self.tensor_count
        keys = len(self.keys) if self.key_count is None else self.key_count
        counts = struct.pack("<QQ", tensors, keys)
        return self.magic + self.version + counts + b"".join(self.keys) + b"".join(self.tensors)

    def build(self) -> bytes:
        header = self.header()
        return header + bytes(-len(header) % self.alignment) + self.data
