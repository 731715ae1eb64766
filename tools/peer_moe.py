"""ggml's expert blocks as llama.cpp builds them, on the libraries that ``peer`` loads.

Routed: ``mul_mat_id`` gate and up (with ``add_id`` biases for gpt-oss), the activation, ``mul_mat_id`` down, times the
routing weights, added slot by slot. Shared: ``mul_mat`` thrice and SwiGLU, times a sigmoid gate, plus the routed rows.
"""

from __future__ import annotations

import ctypes as c
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from peer import _INT, _P, _SIZE, TYPES, Ggml, _InitParams, _Tensor

Array = npt.NDArray[Any]
_I64, _FLOAT = c.c_int64, c.c_float
I32_TYPE = 26
CONTEXT_BYTES = 8 << 20
_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "ggml_new_tensor_3d": (_P, [_P, _INT, _I64, _I64, _I64]), "ggml_mul_mat_id": (_P, [_P] * 4),
    "ggml_swiglu_split": (_P, [_P] * 3), "ggml_mul": (_P, [_P] * 3), "ggml_add": (_P, [_P] * 3),
    "ggml_view_2d": (_P, [_P, _P, _I64, _I64, _SIZE, _SIZE]), "ggml_cont": (_P, [_P, _P]),
    "ggml_add_id": (_P, [_P] * 4), "ggml_swiglu_oai": (_P, [_P, _P, _P, _FLOAT, _FLOAT]),
    "ggml_sigmoid": (_P, [_P, _P]),
}  # fmt: skip


class PeerWeights:
    """Matrices ``role -> (format, [E, rows, row_bytes], values a row)`` and fp32 vectors in ggml's buffers.

    With ``repack``, a matrix whose format has no repacked kernel here stays in the default buffer, as llama.cpp leaves
    it; ``repacked`` names those that moved. fp32 arrays ``[E, rows]`` are biases or the scalar gate.
    """

    def __init__(self, ggml: Ggml, matrices: Mapping[str, tuple[str, Array, int]], repack: bool) -> None:
        self.ggml = ggml
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(ggml.base, name)
            function.restype, function.argtypes = result, arguments
        self._contexts: list[int] = []
        self._buffers: list[int] = []
        self.repacked: list[str] = []
        self.tensors = {
            role: self._tensor(role, storage, data, values, repack and storage != "fp32")
            for role, (storage, data, values) in matrices.items()
        }

    def _tensor(self, role: str, storage: str, data: Array, values: int, repack: bool) -> int:
        base = self.ggml.base
        experts, rows = data.shape[:2] if data.ndim == 3 else (1, data.shape[0])
        for buffers in (self.ggml.repack_buffers if repack else None, self.ggml.default_buffers):
            if buffers is None:
                continue
            context = base.ggml_init(_InitParams(1 << 20, None, True))
            tensor = int(base.ggml_new_tensor_3d(context, TYPES[storage], values, rows, experts))
            buffer = base.ggml_backend_alloc_ctx_tensors_from_buft(context, buffers)
            moved = buffers is not self.ggml.default_buffers
            if not moved or _Tensor.from_address(tensor).extra:
                self._contexts.append(context)
                self._buffers.append(buffer)
                self.repacked += [role] if moved else []
                data = np.ascontiguousarray(data)
                assert data.nbytes == base.ggml_nbytes(tensor)
                base.ggml_backend_tensor_set(tensor, data.ctypes.data, 0, data.nbytes)
                return tensor
            base.ggml_backend_buffer_free(buffer)
            base.ggml_free(context)
        raise RuntimeError("ggml has no buffer for the experts")

    def free(self) -> None:
        """Release buffers and contexts."""
        for buffer in self._buffers:
            self.ggml.base.ggml_backend_buffer_free(buffer)
        for context in self._contexts:
            self.ggml.base.ggml_free(context)
        self._buffers, self._contexts = [], []


class PeerBlock:
    """The graph of one block for fixed inputs: ``hidden`` ``[T, H]`` and, by their presence, ``indices`` and
    ``routing_weights`` ``[T, K]`` of a routed block, or ``routed`` ``[T, H]`` of a gated shared one.
    """

    def __init__(self, weights: PeerWeights, inputs: Mapping[str, Array]) -> None:
        self.ggml, base = weights.ggml, weights.ggml.base
        self._context = base.ggml_init(_InitParams(CONTEXT_BYTES, None, True))
        self._inputs: dict[str, int] = {}
        build = self._routed if "indices" in inputs else self._shared
        self._y = build(weights.tensors, *inputs["hidden"].shape, inputs)
        self._graph = base.ggml_new_graph(self._context)
        base.ggml_build_forward_expand(self._graph, self._y)
        self._buffer = base.ggml_backend_alloc_ctx_tensors_from_buft(self._context, self.ggml.default_buffers)
        for name, tensor in self._inputs.items():
            array = np.ascontiguousarray(inputs[name])
            assert array.nbytes == base.ggml_nbytes(tensor)
            base.ggml_backend_tensor_set(tensor, array.ctypes.data, 0, array.nbytes)

    def _input(self, name: str, storage: int, *shape: int) -> int:
        self._inputs[name] = self.ggml.base.ggml_new_tensor_3d(self._context, storage, *shape)
        return self._inputs[name]

    def _routed(self, w: Mapping[str, int], tokens: int, hidden: int, inputs: Mapping[str, Array]) -> int:
        base, k, slots = self.ggml.base, self._context, inputs["indices"].shape[1]
        x = self._input("hidden", TYPES["fp32"], hidden, 1, tokens)
        ids = self._input("indices", I32_TYPE, slots, tokens, 1)
        factors = self._input("routing_weights", TYPES["fp32"], 1, slots, tokens)
        up = base.ggml_mul_mat_id(k, w["up"], x, ids)
        gate = base.ggml_mul_mat_id(k, w["gate"], x, ids)
        if "up_bias" in w:
            up, gate = base.ggml_add_id(k, up, w["up_bias"], ids), base.ggml_add_id(k, gate, w["gate_bias"], ids)
            inner = base.ggml_swiglu_oai(k, gate, up, 1.702, 7.0)
        else:
            inner = base.ggml_swiglu_split(k, gate, up)
        down = base.ggml_mul_mat_id(k, w["down"], inner, ids)
        if "down_bias" in w:
            down = base.ggml_add_id(k, down, w["down_bias"], ids)
        rows, total = base.ggml_mul(k, down, factors), None
        for slot in range(slots):
            row = base.ggml_view_2d(k, rows, hidden, tokens, 4 * hidden * slots, 4 * hidden * slot)
            total = row if total is None else base.ggml_add(k, total, row)
        return int(base.ggml_cont(k, total) if slots == 1 else total)

    def _shared(self, w: Mapping[str, int], tokens: int, hidden: int, inputs: Mapping[str, Array]) -> int:
        base, k = self.ggml.base, self._context
        x = self._input("hidden", TYPES["fp32"], hidden, tokens, 1)
        up, gate = base.ggml_mul_mat(k, w["up"], x), base.ggml_mul_mat(k, w["gate"], x)
        down = base.ggml_mul_mat(k, w["down"], base.ggml_swiglu_split(k, gate, up))
        factor = base.ggml_sigmoid(k, base.ggml_mul_mat(k, w["gate_input"], x))
        routed = self._input("routed", TYPES["fp32"], hidden, tokens, 1)
        return int(base.ggml_add(k, base.ggml_mul(k, down, factor), routed))

    def run(self, threads: int) -> None:
        """Compute the graph."""
        self.ggml.compute(self._graph, threads)

    def output(self) -> npt.NDArray[np.float32]:
        """Copy of the result ``[T, H]``."""
        return self.ggml.rows_of(self._y)

    def free(self) -> None:
        """Release the graph."""
        self.ggml.base.ggml_backend_buffer_free(self._buffer)
        self.ggml.base.ggml_free(self._context)
