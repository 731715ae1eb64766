"""GGUF files, whole or in shards, to an inventory.

```
"GGUF" | version u32 | tensors u64 | key-values u64 | key-values ... | tensor infos ... | padding | data ...
```

The header is read by our own bounded reader over the mapped file, not by ``gguf.GGUFReader``, which was tried: it makes
numpy views for every token (5.9 s and 480 MB for a vocabulary of 150,000, here 24 ms and 7 kB), believes the counts and
lengths of the file, and refuses with plain ValueErrors that name no place. Running it after our checks would find
nothing new, so nothing is parsed twice; the tests compare every fact and byte with it. The package's tables still say
what the types outside our vocabulary are (`kernelmap.inventory.formats`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kernelmap.errors import KernelmapError
from kernelmap.inventory.files import MappedFile, mapped
from kernelmap.inventory.gguf_cursor import Cursor
from kernelmap.inventory.gguf_metadata import LEAST_KEY_BYTES, MAX_KEYS, Metadata
from kernelmap.inventory.gguf_shards import check_shards, shard_paths
from kernelmap.inventory.gguf_tensors import LEAST_TENSOR_BYTES, MAX_TENSORS, read_tensors
from kernelmap.inventory.layout import check_layout
from kernelmap.inventory.problems import BrokenFileError, Problems, shown
from kernelmap.models.inventory import FileStamp, Inventory, MetadataValue, TensorInfo

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 2**30


@dataclass(slots=True)
class _Part:
    """What one file of the model says."""

    name: str
    stamp: FileStamp
    metadata: dict[str, MetadataValue] = field(default_factory=dict)
    tensors: list[TensorInfo] = field(default_factory=list)
    whole: bool = False
    """Whether the header was read to its end."""


def read_gguf(path: Path) -> Inventory:
    """The inventory of a GGUF file, or of all shards of which ``path`` is one.

    Raises KernelmapError (KM601 to KM618) with everything that is wrong in all of the files.
    """
    problems = Problems()
    paths = shard_paths(path, problems)
    problems.raise_if_any()
    parts: list[_Part] = []
    for index, item in enumerate(paths):
        try:
            with mapped(item) as file:
                parts.append(_read_part(file, index, problems))
        except KernelmapError as error:
            problems.found.extend(error.diagnostics)
    if len(parts) == len(paths) and all(part.whole for part in parts):
        check_shards([(part.name, part.metadata, part.tensors) for part in parts], problems)
    architecture = _architecture(parts, problems)
    problems.raise_if_any()
    return _inventory(architecture, parts)


def _inventory(architecture: str, parts: Sequence[_Part]) -> Inventory:
    """``split.*`` is left out: the same model, whole or in shards, has the same digest."""
    return Inventory(
        schema_version=1,
        architecture=architecture,
        metadata={key: value for key, value in parts[0].metadata.items() if not key.startswith("split.")},
        tensors=tuple(item for part in parts for item in part.tensors),
        files=tuple(part.name for part in parts),
        stamps=tuple(part.stamp for part in parts),
    )


def _read_part(file: MappedFile, index: int, problems: Problems) -> _Part:
    part = _Part(file.name, file.stamp)
    cursor = Cursor(file, problems)
    try:
        _check_version(cursor)
        tensors = cursor.count("tensors", LEAST_TENSOR_BYTES, MAX_TENSORS)
        keys = cursor.count("metadata keys", LEAST_KEY_BYTES, MAX_KEYS)
        part.metadata = Metadata(cursor).read(keys)
        described = list(read_tensors(cursor, tensors, index))
    except BrokenFileError:
        return part
    alignment = _alignment(part, problems)
    if alignment:
        part.tensors = _placed(described, cursor.at, alignment, file, problems)
        part.whole = True
    return part


def _check_version(cursor: Cursor) -> None:
    """Magic (KM602), version and byte order (KM603)."""
    name, problems = cursor.file.name, cursor.problems
    cursor.need(4, "the magic")
    magic = cursor.file.data[:4]
    if magic != MAGIC:
        raise problems.add("KM602", name, "not a GGUF file", expected=repr(MAGIC), found=repr(magic))
    cursor.at = 4
    version = cursor.u32("the version")
    if version in VERSIONS:
        return
    known = " or ".join(map(str, VERSIONS))
    if version and version & 0xFFFF == 0:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        raise problems.add(
            "KM603", name, "a big-endian GGUF file", expected=f"little-endian version {known} at byte 4",
            found=f"big-endian version {swapped}", help="convert it again, for a little-endian machine",
        )  # fmt: skip
    raise problems.add(
        "KM603", name, "a GGUF version that this reader does not know", expected=f"version {known} at byte 4",
        found=str(version), help="convert it with a newer llama.cpp" if version == 1 else "",
    )  # fmt: skip


def _alignment(part: _Part, problems: Problems) -> int:
    """``general.alignment``; 0, with the problem reported (KM610), if it is none."""
    value = part.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    whole = isinstance(value, int) and not isinstance(value, bool)
    if whole and isinstance(value, int) and 1 <= value <= MAX_ALIGNMENT and value & (value - 1) == 0:
        return value
    problems.add(
        "KM610", part.name, "metadata 'general.alignment' is impossible",
        expected=f"a power of two up to {MAX_ALIGNMENT}", found=str(value)[:60],
    )  # fmt: skip
    return 0


def _placed(
    described: Sequence[TensorInfo], header: int, alignment: int, file: MappedFile, problems: Problems
) -> list[TensorInfo]:
    """The tensors with absolute offsets, checked: aligned (KM614), inside the file, not overlapping."""
    data = -(-header // alignment) * alignment
    placed = []
    for item in described:
        offset = item.offset or 0
        if offset % alignment:
            message = f"tensor {shown(item.name)} has a misaligned offset"
            expected = f"a multiple of {alignment}"
            problems.add("KM614", file.name, message, expected=expected, found=f"{offset} (byte {data + offset})")
            continue
        placed.append(item.model_copy(update={"offset": data + offset}))
    check_layout(placed, file.name, file.size, problems)
    return placed


def _architecture(parts: Sequence[_Part], problems: Problems) -> str:
    """``general.architecture`` of the first shard (KM609); asked for only if that shard's metadata could be read."""
    if not parts or not parts[0].whole:
        return ""
    value = parts[0].metadata.get("general.architecture")
    if isinstance(value, str) and 1 <= len(value) <= 200 and value.isprintable():
        return value
    problems.add(
        "KM609", parts[0].name, "metadata 'general.architecture' is missing or no name",
        expected="a text of 1 to 200 letters", found="nothing" if value is None else shown(str(value)),
    )  # fmt: skip
    return ""
