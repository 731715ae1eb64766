"""One call of an expert block: its words filled, its schedule run on the worker pool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from kernelmap.spec import BuildSpec
from kernelmap.vocabulary import FORMATS
from kernelmap_providers.arguments import Array, given
from kernelmap_providers.experts import bucketed, by_token
from kernelmap_providers.experts import words as at
from kernelmap_providers.experts.gating import GATELESS, activation_leg, parameter_words
from kernelmap_providers.experts.legs import LEG_ARGUMENTS, act_of, pack_room, packed_leg, quantize_leg, stored_leg
from kernelmap_providers.experts.sizes import align64, common_sizes
from kernelmap_providers.jit.compile import compiled, entry, native_address
from kernelmap_providers.packed.layouts import PACKED_FORMATS
from kernelmap_providers.packed.weight import PackedWeight
from kernelmap_providers.pool.control import dispatch
from kernelmap_providers.pool.workers import POOL
from kernelmap_providers.simd.static import StaticType
from kernelmap_providers.simd.target import host_form

SCHEDULES = {
    "tokens": by_token.tokens_task,
    "bucketed": bucketed.bucketed_task,
}
"""Schedules by name. None knows a format, and any runs on any legs."""
MATRIX_WORDS = {"gate": (at.GATE, at.GATE_DOTS), "up": (at.UP, at.UP_DOTS), "down": (at.DOWN, at.DOWN_DOTS)}
"""Where each matrix and its leg lie in the words."""
WORDS = at.CALL_BYTES // 8


@entry
def run_task(call: int, task: int, control: int, threads: int) -> None:
    """Run a schedule on ``threads`` threads of the pool."""
    dispatch(control, task, call, threads)


class Block:
    """What is fixed when a block is built: legs, sizes and schedule.

    ``dots`` names the weight port that plays each of ``gate`` (may be missing), ``up`` and ``down``. Raises ValueError
    for formats without legs, or a gate and an up that take different activation formats.
    """

    def __init__(
        self, spec: BuildSpec, dots: Mapping[str, str], schedule: str, merge: int = at.WEIGHTED,
        requantize: bool = False,
    ) -> None:  # fmt: skip
        outer, inner = spec.dtypes[dots["up"]], spec.dtypes[dots["down"]]
        if "gate" in dots and FORMATS[spec.dtypes[dots["gate"]]].act != FORMATS[outer].act:
            raise ValueError(f"{dots['gate']} and {dots['up']} take different activation formats")
        if "gate" not in dots and spec.arithmetic["swiglu"] not in GATELESS:
            raise ValueError(f"activation {spec.arithmetic['swiglu']} takes a gate, and the block has none")
        if schedule == "bucketed" and any(spec.dtypes[port] == "fp32" for port in dots.values()):
            schedule = "tokens"  # fp32 rows have no packed form, and sizes that are no multiple of anything
        self.spec, self.dots, self.schedule = spec, dots, schedule
        self.task = native_address(SCHEDULES[schedule], StaticType(()), *LEG_ARGUMENTS)
        self.template = self._template(outer, inner)
        self.template[at.PACK_BYTES // 8] = self.pack_bytes()
        self.template[at.MERGE // 8], self.template[at.REQUANTIZE // 8] = merge, int(requantize)
        self.found: dict[str, tuple[Any, tuple[int, int, int]]] = {}
        compiled(run_task, *LEG_ARGUMENTS)

    def _template(self, outer: str, inner: str) -> Array:
        """The words that are the same in every call."""
        dims, words = self.spec.dims, np.zeros(WORDS, np.int64)
        kind = self.spec.arithmetic["swiglu"]
        fixed = {
            at.SLOTS: dims.get("K", 1), at.EXPERTS: dims.get("E", 1), at.SIZE: dims["H"], at.WIDTH: dims["I"],
            at.QUANTIZE_HIDDEN: quantize_leg(outer), at.QUANTIZE_INNER: quantize_leg(inner),
            at.ACTIVATE: activation_leg(kind), at.BAD_ROW: at.NO_ROW,
        }  # fmt: skip
        for blocks, stride, storage, values in (
            (at.OUTER_BLOCKS, at.OUTER_STRIDE, outer, dims["H"]),
            (at.INNER_BLOCKS, at.INNER_STRIDE, inner, dims["I"]),
        ):
            size, nbytes = act_of(storage)
            fixed |= {blocks: values // size, stride: values // size * nbytes}
        for role, port in self.dots.items():
            fixed[MATRIX_WORDS[role][1]] = self._leg(port)
        for offset, value in fixed.items():
            words[offset // 8] = value
        words[at.PARAMETERS // 8 : at.PARAMETERS // 8 + 2] = parameter_words(kind, self.spec.params)
        return words

    def _leg(self, port: str) -> int:
        form = host_form(self.spec.isa)
        if port in self.spec.prepared:
            return packed_leg(self.spec.prepared[port], form)
        return stored_leg(self.spec.dtypes[port], form)

    def matrix(self, role: str, weight: Any) -> tuple[Any, int, int, int]:
        """(what keeps the bytes alive, address, bytes from expert to expert, bytes from row or row group to the next).

        Raises TypeError for a prepared weight in another layout.
        """
        port = self.dots[role]
        rows, values = (self.spec.dims[name] for name in (("H", "I") if role == "down" else ("I", "H")))
        if port in self.spec.prepared:
            layout = PACKED_FORMATS[self.spec.prepared[port]]
            if not isinstance(weight, PackedWeight):
                raise TypeError(
                    f"{port}: the kernel takes a weight prepared as {layout.name}, not {type(weight).__name__}"
                )
            data = weight.checked(layout, rows, values)
            return data, int(data.ctypes.data), data.strides[0], data.strides[1]
        if weight.strides[-1] != weight.itemsize or min(weight.strides) < 0:
            weight = np.ascontiguousarray(weight)
        expert = weight.strides[0] if weight.ndim == 3 else 0
        return weight, int(weight.ctypes.data), int(expert), int(weight.strides[-2])

    def _found(self, role: str, weight: Any) -> tuple[Any, tuple[int, int, int]]:
        """`matrix`, remembered for the weight of the last call: a session calls with the same one for ever."""
        known = self.found.get(role)
        if known is not None and known[0] is weight:
            return known
        kept, *numbers = self.matrix(role, weight)
        found = kept, (numbers[0], numbers[1], numbers[2])
        if isinstance(weight, PackedWeight) or kept is weight:  # a copy would not see later changes
            self.found[role] = weight, found[1]
        return found

    def run(
        self, hidden: Array, output: Array, weights: Mapping[str, Any], workspace: Array, threads: int,
        ports: Mapping[int, Array],
    ) -> int:  # fmt: skip
        """One call; ``ports`` are the remaining arrays by word.

        Returns 0, or 1 + the least refused token, and then the output is all NaN.
        """
        if len(hidden) == 0:
            return 0
        words = workspace[: at.CALL_BYTES].view(np.int64)
        words[:WORDS] = self.template
        alive: list[Any] = []
        words[at.OUTPUT // 8] = output.ctypes.data
        for offset, array in ((at.HIDDEN, hidden), *ports.items()):
            flags = array.flags
            array = array if flags.c_contiguous and flags.aligned else given(array)
            alive.append(array)
            words[offset // 8] = array.ctypes.data
        for role, weight in weights.items():
            kept, numbers = self._found(role, weight)
            alive.append(kept)
            first = MATRIX_WORDS[role][0] // 8
            words[first : first + 3] = numbers
        words[at.TOKENS // 8] = len(hidden)
        self._place(words, workspace, len(hidden), threads)
        run_task(words.ctypes.data, self.task, POOL.control(threads), threads)
        bad = int(words[at.BAD_ROW // 8])
        if bad == at.NO_ROW:
            return 0
        output.fill(np.nan)
        return bad + 1

    def _place(self, words: Array, workspace: Array, tokens: int, threads: int) -> None:
        """Where common and worker scratch lie: workers share evenly what the common part leaves (sizes: the map)."""
        base = int(words.ctypes.data) + at.CALL_BYTES
        common = self.common_bytes(tokens)
        words[at.COMMON // 8] = base
        words[at.WORKERS // 8] = base + common
        left = workspace.nbytes - at.CALL_BYTES - common
        words[at.WORKER_BYTES // 8] = left // threads // 64 * 64

    def pack_bytes(self) -> int:
        """Room that each worker of the bucketed schedule has for rows packed as they come."""
        if self.schedule != "bucketed":
            return 0
        stored = ((role, port) for role, port in self.dots.items() if port not in self.spec.prepared)
        return max((align64(pack_room(self.spec.dtypes[port], self.spec.dims["I" if role == "down" else "H"]))
                    for role, port in stored), default=0)  # fmt: skip

    def common_bytes(self, tokens: int) -> int:
        """Scratch that all threads share."""
        if self.schedule != "bucketed":
            return 0
        slots, experts, outer, inner = (
            int(self.template[offset // 8]) for offset in (at.SLOTS, at.EXPERTS, at.OUTER_STRIDE, at.INNER_STRIDE)
        )
        return sum(common_sizes(tokens, slots, experts, outer, inner))
