"""A bounded reader of GGUF's primitive values over a memory-mapped file.

GGUF (ggml/docs/gguf.md), little endian: integers, floats, and strings as a uint64 length and so many bytes. No length
or count out of the file is believed before it was compared with the bytes that are left.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from kernelmap.inventory.files import MappedFile
from kernelmap.inventory.problems import Problems, shown

STRING, ARRAY, BOOL = 8, 9, 7
SCALARS: Mapping[int, struct.Struct] = {
    number: struct.Struct("<" + code)
    for number, code in zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIifBQqd", strict=True)
}
"""GGUF's fixed-size value types (uint8 to float64) by number; 8 is a string, 9 an array."""

_U32, _U64 = SCALARS[4], SCALARS[10]
MAX_TEXT = 4096
"""Longer texts are not kept. A chat template may be longer, and no choice depends on it."""
MAX_NAME = 1024
"""Bytes of a key or tensor name (ggml itself stops at 64 bytes for tensors and 65535 for keys)."""
MAX_STRINGS = 2**23
"""Strings in all arrays of a file: each costs a step of the reader. The largest vocabularies have 2**18 tokens."""


@dataclass(slots=True)
class Cursor:
    """A position in a file. Every method raises BrokenFileError, with the problem reported, where it cannot read."""

    file: MappedFile
    problems: Problems
    at: int = 0
    strings_left: int = field(default=MAX_STRINGS)

    @property
    def left(self) -> int:
        """Bytes after the position."""
        return self.file.size - self.at

    def need(self, count: int, what: str) -> None:
        """Checks that ``count`` more bytes are there (KM604)."""
        if count > self.left:
            raise self.problems.add(
                "KM604", self.file.name, f"the file ends inside {what}, which begins at byte {self.at}",
                expected=f"{count} bytes", found=f"{self.left} bytes",
                help="the file is truncated or damaged: compare its size with the publisher's",
            )  # fmt: skip

    def u32(self, what: str) -> int:
        """A uint32."""
        return int(self.scalar(_U32, what))

    def u64(self, what: str) -> int:
        """A uint64."""
        return int(self.scalar(_U64, what))

    def scalar(self, kind: struct.Struct, what: str) -> int | float:
        """One value of a fixed-size type."""
        self.need(kind.size, what)
        value: int | float = kind.unpack_from(self.file.data, self.at)[0]
        self.at += kind.size
        return value

    def count(self, what: str, least: int, limit: int) -> int:
        """A uint64 count of things of at least ``least`` bytes each (KM604), of which no file needs over ``limit``."""
        start = self.at
        value = self.u64(f"the number of {what}")
        if value * least > self.left:
            raise self.problems.add(
                "KM604", self.file.name, f"the number of {what} at byte {start} is more than the file can hold",
                expected=f"at most {self.left // least} in the {self.left} bytes that follow", found=str(value),
                help="the file is truncated or damaged",
            )  # fmt: skip
        if value > limit:
            message = f"the number of {what} at byte {start} is over the limit of this reader"
            raise self.problems.add("KM605", self.file.name, message, expected=f"at most {limit}", found=str(value))
        return value

    def string(self, what: str) -> bytes | int:
        """The bytes of a string; of one over `MAX_TEXT` bytes only its length."""
        length = self.u64(f"the length of {what}")
        self.need(length, what)
        start = self.at
        self.at += length
        return length if length > MAX_TEXT else self.file.data[start : self.at]

    def name(self, what: str) -> str:
        """A key or tensor name: 1 to `MAX_NAME` bytes (KM605) of printable UTF-8 (KM608)."""
        start = self.at
        raw = self.string(what)
        length = raw if isinstance(raw, int) else len(raw)
        if isinstance(raw, int) or not 1 <= length <= MAX_NAME:
            message = f"{what} at byte {start} has no plausible length"
            raise self.problems.add(
                "KM605", self.file.name, message, expected=f"1 to {MAX_NAME} bytes", found=f"{length} bytes"
            )
        text = self.decoded(raw, what, start)
        if not text.isprintable():
            self.problems.add("KM608", self.file.name, f"{what} at byte {start} is not printable", found=shown(text))
        return text

    def decoded(self, raw: bytes, what: str, start: int) -> str:
        """UTF-8 text; what is none is reported (KM608) and escaped."""
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            found = f"byte 0x{raw[error.start]:02x} at byte {start + 8 + error.start}"
            self.problems.add("KM608", self.file.name, f"{what} at byte {start} is not UTF-8", found=found)
            return raw.decode("utf-8", "backslashreplace")

    def skip_strings(self, count: int, what: str) -> None:
        """Steps over an array's strings without keeping them; bounded by `MAX_STRINGS` in a file (KM605)."""
        self.need(count * 8, what)
        self.strings_left -= count
        if self.strings_left < 0:
            message = f"arrays hold too many strings up to {what} at byte {self.at}"
            raise self.problems.add("KM605", self.file.name, message, expected=f"at most {MAX_STRINGS} in a file")
        unpack, data, size, at = _U64.unpack_from, self.file.data, self.file.size, self.at
        for index in range(count):
            if at + 8 > size:
                self.at = at
                self.need(8, f"string {index} of {what}")
            (length,) = unpack(data, at)
            at += 8 + length
            if at > size:
                self.at = at - length
                self.need(length, f"string {index} of {what}")
        self.at = at
