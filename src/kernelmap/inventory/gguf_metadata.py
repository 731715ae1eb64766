"""GGUF's key-value section: ``count`` times key (string), type (uint32), value."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from kernelmap.inventory.gguf_cursor import ARRAY, BOOL, SCALARS, STRING, Cursor
from kernelmap.inventory.problems import shown
from kernelmap.models.inventory import MetadataValue

MAX_KEYS = 2**14
LEAST_KEY_BYTES = 8 + 1 + 4 + 1
MAX_ARRAY = 4096
"""Longer arrays are reduced to their length: per-layer arrays have some hundred values."""
MAX_KEPT = 2**18
"""Values kept of one file (16 bytes of text count as one): bounds memory, whatever the file says."""

_Scalar = bool | int | float | str


@dataclass(slots=True)
class Metadata:
    """Reads key-values into ``values``; see `kernelmap.models.inventory.Inventory` for what is reduced to a count."""

    cursor: Cursor
    values: dict[str, MetadataValue] = field(default_factory=dict)
    kept: int = 0

    def read(self, count: int) -> dict[str, MetadataValue]:
        """Reads ``count`` key-values from the cursor on. Raises BrokenFileError where reading cannot go on."""
        for index in range(count):
            start = self.cursor.at
            key = self.cursor.name(f"metadata key {index}")
            kind = self.cursor.u32(f"the type of {shown(key)}")
            if kind == ARRAY:
                name, value = self._array(key)
            elif kind == STRING:
                name, value = self._string(key)
            elif kind in SCALARS:
                name, value = key, self._checked(self.cursor.scalar(SCALARS[kind], shown(key)), kind, key)
            else:
                raise self._bad_type(key, kind, "0 to 12")
            if name in self.values or key in self.values:
                message = f"metadata key {shown(key)} at byte {start} is there twice"
                self.cursor.problems.add("KM607", self.cursor.file.name, message)
            self.values[name] = value
        return self.values

    def _bad_type(self, key: str, kind: int, expected: str) -> Exception:
        message = f"metadata {shown(key)} has an unknown type at byte {self.cursor.at - 4}"
        name = self.cursor.file.name
        return self.cursor.problems.add("KM606", name, message, expected=f"a type number {expected}", found=str(kind))

    def _keep(self, cost: int, key: str) -> None:
        self.kept += cost
        if self.kept > MAX_KEPT:
            message = f"the metadata up to {shown(key)} at byte {self.cursor.at} is over the limit of this reader"
            expected = f"at most {MAX_KEPT} values"
            raise self.cursor.problems.add("KM605", self.cursor.file.name, message, expected=expected)

    def _checked(self, value: int | float, kind: int, key: str) -> _Scalar:
        self._keep(1, key)
        if kind == BOOL:
            if value not in (0, 1):
                self._bad_value(key, "a bool of 0 or 1", str(value))
            return bool(value)
        if isinstance(value, float) and not math.isfinite(value):
            self._bad_value(key, "a finite number", str(value))
            return 0.0
        return value

    def _bad_value(self, key: str, expected: str, found: str) -> None:
        message = f"metadata {shown(key)} has no valid value before byte {self.cursor.at}"
        self.cursor.problems.add("KM606", self.cursor.file.name, message, expected=expected, found=found)

    def _string(self, key: str) -> tuple[str, MetadataValue]:
        start = self.cursor.at
        raw = self.cursor.string(shown(key))
        if isinstance(raw, int):
            return f"{key}.count", raw
        self._keep(1 + len(raw) // 16, key)
        return key, self.cursor.decoded(raw, f"the value of {shown(key)}", start)

    def _array(self, key: str) -> tuple[str, MetadataValue]:
        cursor = self.cursor
        what = f"the array {shown(key)}"
        kind = cursor.u32(f"the item type of {what}")
        if kind not in SCALARS and kind != STRING:
            raise self._bad_type(key, kind, "0 to 8 or 10 to 12 (arrays of arrays are refused, as ggml does)")
        length = cursor.u64(f"the length of {what}")
        keep = length <= MAX_ARRAY and not key.startswith("tokenizer.")
        if kind == STRING:
            if not keep:
                cursor.skip_strings(length, what)
                return f"{key}.count", length
            cursor.need(length * 8, what)
            items = tuple(self._item_text(key, index) for index in range(length))
            return key, items
        size = SCALARS[kind].size
        cursor.need(length * size, what)
        if not keep:
            cursor.at += length * size
            return f"{key}.count", length
        return key, tuple(self._checked(cursor.scalar(SCALARS[kind], what), kind, key) for _ in range(length))

    def _item_text(self, key: str, index: int) -> str:
        start = self.cursor.at
        what = f"item {index} of {shown(key)}"
        raw = self.cursor.string(what)
        if isinstance(raw, int):
            message = f"{what} at byte {start} is over the limit of this reader"
            raise self.cursor.problems.add("KM605", self.cursor.file.name, message, found=f"{raw} bytes")
        self._keep(1 + len(raw) // 16, key)
        return self.cursor.decoded(raw, what, start)
