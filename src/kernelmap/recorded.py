"""Recordings: activations that llama.cpp computed, as inputs and as references; results saved atomically."""

from __future__ import annotations

import lzma
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kernelmap.circuit.instances import Elaborated, Value
from kernelmap.circuit.weights import tensor_name
from kernelmap.errors import Diagnostic, KernelmapError, nearest
from kernelmap.files import whole_file
from kernelmap.vocabulary import Phase

Array = np.ndarray[Any, Any]
_UNREADABLE = (
    OSError, ValueError, EOFError, AttributeError, KeyError, RuntimeError, MemoryError, struct.error, zlib.error,
    lzma.LZMAError, zipfile.BadZipFile,
)  # fmt: skip
"""What zip and numpy raise for a damaged archive; RuntimeError: encrypted, or compressed in a way that is unknown."""
_PREFIXES = {Phase.PREFILL: ("prefill/",), Phase.DECODE: ("decode/", "decode1/"), Phase.INIT: ("init/",)}


@dataclass(frozen=True, slots=True)
class Comparison:
    """An output beside its recorded reference."""

    name: str
    layer: int | None
    relative_rms: float
    """rms(ours - reference) / rms(reference)."""
    median_row: float
    """Median over rows of the same ratio."""
    rows: int


class Recording:
    """An ``.npz`` file of arrays named ``<phase>/<name>`` (``decode1/`` is read as decode)."""

    def __init__(self, path: Path) -> None:
        try:
            with np.load(path, allow_pickle=False) as archive:
                self._arrays: Mapping[str, Array] = {name: archive[name] for name in archive.files}
        except FileNotFoundError:
            raise KernelmapError(Diagnostic("KM001", f"no such file: {path}")) from None
        except _UNREADABLE as error:
            raise KernelmapError(Diagnostic("KM540", f"{path} is no readable .npz file: {error}")) from None
        self.path = path

    def find(self, phase: Phase, name: str) -> Array | None:
        """The array recorded under a name in a phase; None if there is none."""
        for prefix in _PREFIXES[phase]:
            if prefix + name in self._arrays:
                return self._arrays[prefix + name]
        return None

    def has_phase(self, phase: Phase) -> bool:
        """Whether anything was recorded in the phase."""
        return any(name.startswith(_PREFIXES[phase]) for name in self._arrays)

    def inputs(self, elaborated: Elaborated, phase: Phase) -> dict[str, Array]:
        """Every input of the circuit, by llama.cpp's names. Raises KernelmapError for each that is missing."""
        found: dict[str, Array] = {}
        problems: list[Diagnostic] = []
        patterns = {item.name: item.recorded_as for item in elaborated.circuit.inputs}
        for name in elaborated.inputs:
            base, layer = _split(name)
            pattern = patterns[base]
            recorded = tensor_name(pattern, layer) if pattern is not None else base
            array = self.find(phase, recorded)
            if array is None:
                near = nearest(_PREFIXES[phase][-1] + recorded, self._arrays)
                problems.append(
                    Diagnostic("KM541", f"{self.path} has no {phase.value} recording {recorded}", near=near)
                )
            else:
                found[name] = array
        if problems:
            raise KernelmapError(problems)
        return found

    def compare(self, elaborated: Elaborated, phase: Phase, outputs: Mapping[str, Array]) -> Iterator[Comparison]:
        """Every output that was recorded, beside its reference."""
        patterns = {item.name: item.recorded_as for item in elaborated.circuit.outputs}
        for name, array in outputs.items():
            base, layer = _split(name)
            pattern = patterns[base]
            reference = self.find(phase, tensor_name(pattern, layer)) if pattern is not None else None
            if reference is not None and reference.size == array.size:
                yield compare(base, layer, array, reference.reshape(array.shape))


def compare(name: str, layer: int | None, array: Array, reference: Array) -> Comparison:
    """Relative rms of a whole tensor and of its median row, in fp64."""
    difference = array.astype(np.float64) - reference.astype(np.float64)
    rows = np.sqrt(np.mean(np.square(difference).reshape(len(array), -1), axis=1))
    scale = np.sqrt(np.mean(np.square(reference.astype(np.float64)).reshape(len(array), -1), axis=1))
    whole = float(np.sqrt(np.mean(np.square(rows))))
    size = float(np.sqrt(np.mean(np.square(scale))))
    per_row = np.divide(rows, scale, out=np.where(rows > 0, np.inf, 0.0), where=scale > 0)
    ratio = whole / size if size > 0 else float("inf") if whole > 0 else 0.0
    return Comparison(name, layer, ratio, float(np.median(per_row)), len(array))


def random_inputs(elaborated: Elaborated, rows: int, seed: int = 0) -> dict[str, Array]:
    """Seeded normal values for every fp32 input; dynamic dims are ``rows``. Raises KernelmapError for other dtypes."""
    generator = np.random.default_rng(seed)
    made: dict[str, Array] = {}
    for name, value in elaborated.inputs.items():
        if value.dtype != "fp32":
            message = f"input {name!r} is {value.dtype}: give recorded inputs"
            raise KernelmapError(Diagnostic("KM541", message))
        made[name] = generator.standard_normal(_shape(value, rows)).astype(np.float32)
    return made


def _shape(value: Value, rows: int) -> tuple[int, ...]:
    return tuple(size if isinstance(size, int) else rows for size in value.shape)


def save_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Writes an ``.npz`` file whole or not at all. Raises KernelmapError if the place cannot be written."""
    with whole_file(path, "KM542") as file:
        np.savez_compressed(file, **dict(arrays))  # type: ignore[arg-type]  # numpy types keywords as flags


def _split(name: str) -> tuple[str, int | None]:
    base, _, layer = name.partition("/")
    return base, int(layer) if layer else None
