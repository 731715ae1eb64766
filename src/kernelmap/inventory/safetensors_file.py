"""safetensors files, whole or listed by an index, to an inventory.

```
header length u64 | JSON {"__metadata__": {...}, NAME: {"dtype", "shape", "data_offsets": [start, stop]}} | data ...
```

The header is read twice, on purpose: by us, because the library tells no offsets and stops at the first problem, and
then by ``safetensors.safe_open`` (microseconds), because the reference implementation's word on what is valid is final:
what it refuses is refused, also if our checks should ever miss it.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelmap.errors import KernelmapError
from kernelmap.inventory.files import MappedFile, mapped
from kernelmap.inventory.formats import SAFETENSORS_DTYPES
from kernelmap.inventory.layout import check_layout
from kernelmap.inventory.problems import BrokenFileError, Problems, shown
from kernelmap.inventory.safetensors_index import read_index
from kernelmap.models.inventory import FileStamp, Inventory, MetadataValue, TensorInfo

MAX_HEADER = 2**23
"""Bytes. The library allows 100 MB; 8 MB hold 60,000 tensors, and parsing costs about ten times the text."""
MAX_DIMS = 8
_LENGTH = 8
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_FIELDS = {"dtype", "shape", "data_offsets"}


@dataclass(slots=True)
class _Part:
    stamp: FileStamp
    tensors: list[TensorInfo] = field(default_factory=list)
    metadata: dict[str, MetadataValue] = field(default_factory=dict)


def read_safetensors(path: Path) -> Inventory:
    """The inventory of a ``.safetensors`` file or of a ``*.safetensors.index.json``.

    The architecture is the ``model_type`` of the ``config.json`` beside it, else ``unknown``: the format has none.
    Raises KernelmapError (KM601 to KM619) with everything that is wrong in all of the files.
    """
    problems = Problems()
    index = read_index(path) if path.suffix == ".json" else None
    paths = index.paths if index else (path,)
    parts: list[_Part] = []
    for number, item in enumerate(paths):
        try:
            with mapped(item) as file:
                parts.append(_read_part(file, number, problems))
        except KernelmapError as error:
            problems.found.extend(error.diagnostics)
    if index and not problems.found:
        index.check([[tensor.name for tensor in part.tensors] for part in parts], problems)
    problems.raise_if_any()
    return Inventory(
        schema_version=1,
        architecture=_model_type(path.with_name("config.json")),
        metadata={key: value for part in reversed(parts) for key, value in part.metadata.items()},
        tensors=tuple(tensor for part in parts for tensor in part.tensors),
        files=tuple(map(str, paths)),
        stamps=tuple(part.stamp for part in parts),
    )


def _model_type(config: Path) -> str:
    """``model_type`` of a Hugging Face ``config.json``, ``unknown`` where there is no such file."""
    from kernelmap.jsonsource import read_json

    if not config.is_file():
        return "unknown"
    value = read_json(config).value.get("model_type")
    return value if isinstance(value, str) and 1 <= len(value) <= 200 and value.isprintable() else "unknown"


def _read_part(file: MappedFile, number: int, problems: Problems) -> _Part:
    part = _Part(file.stamp)
    try:
        header, data = _header(file, problems)
    except BrokenFileError:
        return part
    before = len(problems.found)
    for name, entry in header.items():
        if name == "__metadata__":
            part.metadata = _texts(file, entry, problems)
            continue
        tensor = _tensor(file, name, entry, data, number, problems)
        if tensor is not None:
            part.tensors.append(tensor)
    part.tensors.sort(key=lambda tensor: tensor.offset or 0)
    check_layout(part.tensors, file.name, file.size, problems)
    if len(problems.found) == before:
        _ask_library(file, problems)
    return part


def _header(file: MappedFile, problems: Problems) -> tuple[dict[str, Any], int]:
    """The parsed header and the data's first byte. Raises BrokenFileError, all reported (KM604, 605, 619)."""
    help_text = "the file is truncated, damaged, or no safetensors file"
    if file.size < _LENGTH:
        message = "the file ends inside the header length at byte 0"
        raise problems.add("KM604", file.name, message, found=f"{file.size} bytes", help=help_text)
    length = int.from_bytes(file.data[:_LENGTH], "little")
    if length > file.size - _LENGTH:
        message = "the file ends inside the header, which begins at byte 8"
        found = f"{file.size - _LENGTH} bytes"
        raise problems.add("KM604", file.name, message, expected=f"{length} bytes", found=found, help=help_text)
    if length > MAX_HEADER:
        message = "the header is over the limit of this reader"
        raise problems.add("KM605", file.name, message, expected=f"at most {MAX_HEADER} bytes", found=f"{length} bytes")
    repeated: list[str] = []

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) < len(pairs):
            seen: set[str] = set()
            repeated.extend(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        return made

    try:
        value = json.loads(file.data[_LENGTH : _LENGTH + length].decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        message = f"the header is not JSON: {str(error)[:200]}"
        raise problems.add("KM619", file.name, message, help=help_text) from None
    if not isinstance(value, dict):
        message = "the header is no JSON object"
        raise problems.add("KM619", file.name, message, found=type(value).__name__)
    for key in repeated:
        problems.add("KM613", file.name, f"the header names {shown(key)} twice")
    return value, _LENGTH + length


def _texts(file: MappedFile, entry: object, problems: Problems) -> dict[str, MetadataValue]:
    if isinstance(entry, dict) and all(_is_text(value) for value in entry.values()):
        return dict(entry)
    problems.add("KM606", file.name, "'__metadata__' maps names to texts", found=type(entry).__name__)
    return {}


def _tensor(
    file: MappedFile, name: str, entry: object, data: int, number: int, problems: Problems
) -> TensorInfo | None:
    """The tensor of a header entry; None, with the problem reported, if it is wrong."""
    what = f"tensor {shown(name)}"
    if not 1 <= len(name) <= 1024 or not name.isprintable():
        problems.add("KM608", file.name, f"{what} has no plausible name", expected="1 to 1024 printable letters")
        return None
    if not isinstance(entry, dict) or set(entry) != _FIELDS:
        found = ascii(sorted(entry))[:80] if isinstance(entry, dict) else type(entry).__name__
        problems.add("KM619", file.name, f"{what} is badly described", expected=", ".join(sorted(_FIELDS)), found=found)
        return None
    shape, span = entry["shape"], entry["data_offsets"]
    stored = SAFETENSORS_DTYPES.get(entry["dtype"]) if isinstance(entry["dtype"], str) else None
    if stored is None:
        problems.add("KM612", file.name, f"{what} has an unknown dtype", found=shown(str(entry["dtype"])))
        return None
    if not _sizes(shape) or len(shape) > MAX_DIMS or math.prod(shape) * stored.block_bytes >= 2**63:
        expected = f"up to {MAX_DIMS} dims with a product under 2**63 bytes"
        problems.add("KM611", file.name, f"{what} has impossible dims", expected=expected, found=ascii(shape)[:80])
        return None
    nbytes = math.prod(shape) * stored.block_bytes
    if not _sizes(span) or len(span) != 2 or span[1] - span[0] != nbytes:
        expected = f"two offsets {nbytes} bytes apart"
        problems.add("KM615", file.name, f"{what} has impossible offsets", expected=expected, found=ascii(span)[:80])
        return None
    return TensorInfo(
        name=name, format=stored.name, shape=tuple(shape), nbytes=nbytes, file=number, offset=data + span[0]
    )


def _is_text(value: object) -> bool:
    """Whether it is a text that UTF-8 can hold: JSON's escapes can make lone surrogates."""
    return isinstance(value, str) and not _SURROGATE.search(value)


def _sizes(value: object) -> bool:
    """Whether it is a list of whole numbers from 0 to under 2**62, so that their sums and products stay small."""
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 2**62 for item in value)


def _ask_library(file: MappedFile, problems: Problems) -> None:
    import safetensors

    try:
        with safetensors.safe_open(file.name, framework="numpy"):
            pass
    except (safetensors.SafetensorError, OSError) as error:
        problems.add("KM619", file.name, f"the safetensors library refuses it: {str(error)[:200]}")
