"""The index of a sharded safetensors model: ``{"metadata": ..., "weight_map": {TENSOR: FILE}}``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelmap.errors import Diagnostic, KernelmapError
from kernelmap.inventory.problems import Problems, shown
from kernelmap.jsonsource import JsonSource, read_json
from kernelmap.models.loading import pointer

MAX_SHARDS = 1024


@dataclass(frozen=True, slots=True)
class SafetensorsIndex:
    """Which tensor lies in which file."""

    source: JsonSource
    weight_map: dict[str, str]
    paths: tuple[Path, ...]
    """The files, sorted by name."""

    def check(self, names: Sequence[Sequence[str]], problems: Problems) -> None:
        """Compares with the tensors of each file: KM613 in two files, KM618 not where the index says."""
        where: dict[str, str] = {}
        for path, found in zip(self.paths, names, strict=True):
            for name in found:
                first = where.setdefault(name, path.name)
                if first != path.name:
                    problems.add("KM613", str(path), f"tensor {shown(name)} is in {first} too")
                elif name not in self.weight_map:
                    problems.add("KM618", str(path), f"tensor {shown(name)} is not in the index", found=path.name)
        for name, expected in self.weight_map.items():
            if where.get(name) != expected:
                found_in = where.get(name, "no file")
                message = f"tensor {shown(name)} is not where the index says"
                problems.add("KM618", self.source.name, message, expected=expected, found=found_in)


def read_index(path: Path) -> SafetensorsIndex:
    """Reads an index. Raises KernelmapError: KM0xx no JSON, KM618 no index, KM617 a shard is missing."""
    source = read_json(path)
    mapping = source.value.get("weight_map")
    if not isinstance(mapping, dict) or not mapping:
        place = source.place("/weight_map")
        raise KernelmapError(Diagnostic("KM618", "not an index of safetensors files: no 'weight_map'", place=place))
    problems = []
    for name, file in mapping.items():
        # A name that leads out of the folder would let a downloaded model read any file of its user.
        if not isinstance(file, str) or Path(file).name != file or file in {"", ".", ".."} or "\\" in file:
            place = source.place(f"/weight_map{pointer((name,))}")
            problems.append(Diagnostic("KM618", "a shard is a file name in the index's folder", place=place))
    if problems:
        raise KernelmapError(problems[:64])
    files = sorted(set(mapping.values()))
    if len(files) > MAX_SHARDS:
        message = f"the index names {len(files)} files, over the limit of {MAX_SHARDS}"
        raise KernelmapError(Diagnostic("KM605", message, place=source.place("/weight_map")))
    for file in files:
        if not path.with_name(file).exists():
            first = next(name for name, value in mapping.items() if value == file)
            place = source.place(f"/weight_map{pointer((first,))}")
            problems.append(Diagnostic("KM617", f"shard {file} is missing", place=place))
    if problems:
        raise KernelmapError(problems[:64])
    return SafetensorsIndex(source, mapping, tuple(path.with_name(file) for file in files))
