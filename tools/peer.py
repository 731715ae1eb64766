"""ggml's CPU backend through ctypes, as the peer of the benchmarks.

The libraries are those that ``pip install llama-cpp-python==0.3.36`` builds (extra ``peer``); pass their directory, or
let ``find_library_dir`` look for it. Two weight buffers exist: the default one, and ``repack``, into which ggml
interleaves rows of the formats that have a repacked kernel on this machine; whichever is faster is the peer.

OpenMP workers spin for a while after a parallel graph: sleep some 15 ms before timing anything else on two threads.
"""

from __future__ import annotations

import ctypes as c
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

TYPES = {"fp32": 0, "fp16": 1, "q5_1": 7, "q8_0": 8, "q8_1": 9, "q4_k": 12, "q5_k": 13, "q6_k": 14, "q8_k": 15,
         "bf16": 30, "mxfp4": 39}  # fmt: skip
"""ggml's type numbers by our format names."""
QUIET_SECONDS = 0.015

_P, _I64, _SIZE, _INT = c.c_void_p, c.c_int64, c.c_size_t, c.c_int


class _InitParams(c.Structure):
    _fields_ = (("mem_size", _SIZE), ("mem_buffer", _P), ("no_alloc", c.c_bool))


class _Tensor(c.Structure):
    _fields_ = (("type", _INT), ("buffer", _P), ("ne", _I64 * 4), ("nb", _SIZE * 4), ("op", _INT),
                ("op_params", c.c_int32 * 16), ("flags", c.c_int32), ("src", _P * 10), ("view_src", _P),
                ("view_offs", _SIZE), ("data", _P), ("name", c.c_char * 64), ("extra", _P),
                ("padding", c.c_char * 8))  # fmt: skip


class _Traits(c.Structure):
    _fields_ = (("from_float", _P), ("vec_dot", _P), ("vec_dot_type", _INT), ("nrows", _I64))


_FROM_FLOAT = c.CFUNCTYPE(None, _P, _P, _I64)
_EXTRA_BUFFERS = c.CFUNCTYPE(c.POINTER(_P), _P)

_BASE: dict[str, tuple[Any, list[Any]]] = {
    "ggml_init": (_P, [_InitParams]), "ggml_free": (None, [_P]),
    "ggml_new_tensor_2d": (_P, [_P, _INT, _I64, _I64]), "ggml_mul_mat": (_P, [_P, _P, _P]),
    "ggml_new_graph": (_P, [_P]), "ggml_build_forward_expand": (None, [_P, _P]),
    "ggml_nbytes": (_SIZE, [_P]), "ggml_row_size": (_SIZE, [_INT, _I64]),
    "ggml_quantize_chunk": (_SIZE, [_INT, _P, _P, _I64, _I64, _I64, _P]),
    "ggml_backend_alloc_ctx_tensors_from_buft": (_P, [_P, _P]), "ggml_backend_buffer_free": (None, [_P]),
    "ggml_backend_cpu_buffer_type": (_P, []), "ggml_backend_buft_name": (c.c_char_p, [_P]),
    "ggml_backend_tensor_set": (None, [_P, _P, _SIZE, _SIZE]), "ggml_backend_graph_compute": (_INT, [_P, _P]),
    "ggml_backend_reg_dev_get": (_P, [_P, _SIZE]), "ggml_backend_reg_get_proc_address": (_P, [_P, c.c_char_p]),
}  # fmt: skip
_CPU: dict[str, tuple[Any, list[Any]]] = {
    "ggml_backend_cpu_init": (_P, []), "ggml_backend_cpu_set_n_threads": (None, [_P, _INT]),
    "ggml_backend_cpu_reg": (_P, []), "ggml_get_type_traits_cpu": (c.POINTER(_Traits), [_INT]),
    "ggml_cpu_init": (None, []),
}  # fmt: skip


def find_library_dir(start: Path | None = None) -> Path:
    """The directory that holds ``libggml-cpu``: below ``start``, or of the installed llama-cpp-python.

    Raises FileNotFoundError.
    """
    if start is None:
        spec = importlib.util.find_spec("llama_cpp")
        if spec is None or spec.origin is None:
            raise FileNotFoundError("llama-cpp-python is not installed; install the extra 'peer' or give a directory")
        start = Path(spec.origin).parent
    for path in sorted(start.rglob("libggml-cpu*")):
        return path.parent
    raise FileNotFoundError(f"no libggml-cpu below {start}")


class Ggml:
    """One loaded set of ggml libraries."""

    def __init__(self, library_dir: Path) -> None:
        loaded = [_load(library_dir, name) for name in ("libggml-base", "libggml-cpu", "libggml")]
        self.base, self.cpu = loaded[0], loaded[1]
        _declare(self.base, _BASE)
        _declare(self.cpu, _CPU)
        self.cpu.ggml_cpu_init()
        self.backend = self.cpu.ggml_backend_cpu_init()
        self.default_buffers = self.base.ggml_backend_cpu_buffer_type()
        self.repack_buffers = self._repack_buffers()
        self.threads = 0

    def _repack_buffers(self) -> Any:
        """The CPU_REPACK buffer type, or None if it was not built in."""
        device = self.base.ggml_backend_reg_dev_get(self.cpu.ggml_backend_cpu_reg(), 0)
        address = self.base.ggml_backend_reg_get_proc_address(
            self.cpu.ggml_backend_cpu_reg(), b"ggml_backend_dev_get_extra_bufts"
        )
        found = _EXTRA_BUFFERS(address)(device) if address else None
        index = 0
        while found and found[index]:
            if self.base.ggml_backend_buft_name(found[index]) == b"CPU_REPACK":
                return found[index]
            index += 1
        return None

    def compute(self, graph: Any, threads: int) -> None:
        """Compute a graph. Raises RuntimeError if ggml fails."""
        if self.threads != threads:
            self.cpu.ggml_backend_cpu_set_n_threads(self.backend, threads)
            self.threads = threads
        if self.base.ggml_backend_graph_compute(self.backend, graph):
            raise RuntimeError("ggml_backend_graph_compute failed")

    def rows_of(self, tensor: int) -> npt.NDArray[np.float32]:
        """Copy of an fp32 tensor, ``[rows, values]``."""
        at = _Tensor.from_address(tensor)
        memory = (c.c_char * self.base.ggml_nbytes(tensor)).from_address(at.data)
        return np.frombuffer(memory, np.float32).reshape(-1, at.ne[0]).copy()

    def row_bytes(self, name: str, values: int) -> int:
        """Bytes of a row."""
        return int(self.base.ggml_row_size(TYPES[name], values))

    def quantize(self, name: str, rows: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
        """fp32 rows ``[N, K]`` in a storage format, without an importance matrix."""
        rows = np.ascontiguousarray(rows, np.float32)
        out = np.empty((rows.shape[0], self.row_bytes(name, rows.shape[1])), np.uint8)
        self.base.ggml_quantize_chunk(TYPES[name], rows.ctypes.data, out.ctypes.data, 0, *rows.shape, None)
        return out

    def quantize_act(self, name: str, rows: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
        """fp32 rows in an activation format, by the CPU backend's own quantizer."""
        rows = np.ascontiguousarray(rows, np.float32)
        out = np.zeros((rows.shape[0], self.row_bytes(name, rows.shape[1])), np.uint8)
        convert = _FROM_FLOAT(self.cpu.ggml_get_type_traits_cpu(TYPES[name]).contents.from_float)
        for row, target in zip(rows, out, strict=True):
            convert(row.ctypes.data, target.ctypes.data, rows.shape[1])
        return out

    def matmul(self, name: str, weight: npt.NDArray[np.uint8], values: int, tokens: int, repack: bool) -> MatMul | None:
        """``y = x W^T`` as a graph; None where this format has no repacked kernel."""
        if repack and self.repack_buffers is None:
            return None
        made = MatMul(self, name, weight, values, tokens, repack)
        return made if made.usable else None


def _load(directory: Path, name: str) -> c.CDLL:
    for path in sorted(directory.glob(f"{name}.*")):
        return c.CDLL(str(path), mode=c.RTLD_GLOBAL)
    raise FileNotFoundError(directory / name)


def _declare(library: c.CDLL, functions: dict[str, tuple[Any, list[Any]]]) -> None:
    for name, (result, arguments) in functions.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments


class MatMul:
    """One ``ggml_mul_mat`` with its own weight buffer."""

    def __init__(
        self, ggml: Ggml, name: str, weight: npt.NDArray[np.uint8], values: int, tokens: int, repack: bool
    ) -> None:
        self.ggml = ggml
        base = ggml.base
        self._weights, self._rest = (base.ggml_init(_InitParams(1 << 20, None, True)) for _ in range(2))
        self._w = base.ggml_new_tensor_2d(self._weights, TYPES[name], values, weight.shape[0])
        buffers = ggml.repack_buffers if repack else ggml.default_buffers
        self._buffers = [base.ggml_backend_alloc_ctx_tensors_from_buft(self._weights, buffers)]
        # The repack buffer leaves no trait behind where the format has no kernel, and would crash when filled.
        self.usable = not repack or bool(_Tensor.from_address(self._w).extra)
        if not self.usable:
            self.free()
            return
        self._fill(self._w, weight)
        self._x = base.ggml_new_tensor_2d(self._rest, TYPES["fp32"], values, tokens)
        self._y = base.ggml_mul_mat(self._rest, self._w, self._x)
        self._graph = base.ggml_new_graph(self._rest)
        base.ggml_build_forward_expand(self._graph, self._y)
        self._buffers.append(base.ggml_backend_alloc_ctx_tensors_from_buft(self._rest, ggml.default_buffers))

    def _fill(self, tensor: int, values: npt.NDArray[Any]) -> None:
        values = np.ascontiguousarray(values)
        if values.nbytes != self.ggml.base.ggml_nbytes(tensor):
            raise ValueError(f"{values.nbytes} bytes for a tensor of {self.ggml.base.ggml_nbytes(tensor)}")
        self.ggml.base.ggml_backend_tensor_set(tensor, values.ctypes.data, 0, values.nbytes)

    def set_input(self, x: npt.NDArray[np.float32]) -> None:
        """Copy ``x`` ``[M, K]`` into the graph."""
        self._fill(self._x, x.astype(np.float32, copy=False))

    def run(self, threads: int) -> None:
        """Compute the graph."""
        self.ggml.compute(self._graph, threads)

    def runner(self, threads: int) -> Callable[[], None]:
        """``run`` as a callable without arguments."""
        return lambda: self.run(threads)

    def output(self) -> npt.NDArray[np.float32]:
        """Copy of ``y`` ``[M, N]``."""
        return self.ggml.rows_of(self._y)

    def free(self) -> None:
        """Release buffers and contexts."""
        for buffer in self._buffers:
            self.ggml.base.ggml_backend_buffer_free(buffer)
        for context in (self._weights, self._rest):
            self.ggml.base.ggml_free(context)
        self._buffers = []
