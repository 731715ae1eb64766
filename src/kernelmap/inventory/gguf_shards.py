"""Sharded GGUF models: ``NAME-00001-of-00003.gguf`` and the metadata ``split.no``, ``split.count``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from kernelmap.inventory.problems import Problems, shown
from kernelmap.models.inventory import MetadataValue, TensorInfo

SHARD_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf\Z")
"""As llama.cpp's ``llama_split_path`` writes them; numbers count from 1."""
MAX_SHARDS = 1024

Part = tuple[str, Mapping[str, MetadataValue], Sequence[TensorInfo]]
"""File name, metadata, tensors."""


def shard_paths(path: Path, problems: Problems) -> tuple[Path, ...]:
    """All files of the model that ``path`` belongs to, by its name; reports those that are missing (KM617)."""
    match = SHARD_NAME.fullmatch(path.name)
    if match is None or not path.exists():
        return (path,)
    number, count = int(match["number"]), int(match["count"])
    if not 1 <= number <= count <= MAX_SHARDS:
        expected = f"shard 1 to COUNT of at most {MAX_SHARDS}"
        problems.add("KM618", str(path), "an impossible shard number", expected=expected, found=f"{number} of {count}")
        return ()
    paths = tuple(path.with_name(f"{match['stem']}-{index:05d}-of-{count:05d}.gguf") for index in range(1, count + 1))
    for item in paths:
        if not item.exists():
            help_text = "all shards lie in one folder"
            problems.add("KM617", str(path), f"shard {item.name} is missing", expected=f"{count} files", help=help_text)
    return paths


def check_shards(parts: Sequence[Part], problems: Problems) -> None:
    """Compares what the shards say with what is there: ``split.*`` (KM618), tensors in two shards (KM613)."""
    total = sum(len(tensors) for _, _, tensors in parts)
    for index, (name, metadata, _) in enumerate(parts):
        count = metadata.get("split.count", 0 if len(parts) == 1 else None)
        if count not in ((0, 1) if len(parts) == 1 else (len(parts),)):
            help_text = "keep the names that llama.cpp gave the shards: NAME-00001-of-0000N.gguf"
            _disagree(problems, name, "split.count", len(parts), count, help_text)
            continue
        if len(parts) > 1 and metadata.get("split.no") != index:
            _disagree(problems, name, "split.no", index, metadata.get("split.no"), "the file was renamed")
        promised = metadata.get("split.tensors.count", total)
        if len(parts) > 1 and promised != total:
            _disagree(problems, name, "split.tensors.count", total, promised, "a shard of another model is among these")
    owner: dict[str, str] = {}
    for name, _, tensors in parts:
        for item in tensors:
            first = owner.setdefault(item.name, name)
            if first != name:
                problems.add("KM613", name, f"tensor {shown(item.name)} is in {Path(first).name} too")


def _disagree(problems: Problems, name: str, key: str, expected: int, found: object, help_text: str) -> None:
    problems.add(
        "KM618", name, f"metadata {key!r} does not fit the files",
        expected=str(expected), found="nothing" if found is None else str(found)[:60], help=help_text,
    )  # fmt: skip
