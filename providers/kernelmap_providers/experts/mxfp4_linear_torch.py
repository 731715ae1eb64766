"""MXFP4 expert linear in torch, on any device: selected experts one by one, each row decoded once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache
from threading import Lock
from typing import Any

import numpy as np
import torch

from kernelmap.spec import BuildSpec
from kernelmap_providers.formats.e2m1 import CODES

_one_thread = Lock()
"""Held while torch's number of threads, which belongs to the process, is 1."""
CPU_VALUES = 2**20
"""Values that are decoded at once on a CPU."""


def mxfp4_expert_linear_torch(spec: BuildSpec) -> Callable[..., int]:
    """Builds the map. Ports are numpy arrays, or tensors of one device, as one likes.

    Returns 1 + the first token with an expert outside [0, E); the output is then all NaN.
    """
    dtype, mixture_dtype = spec.dtypes["latent_tokens"], spec.dtypes["mixture_weights"]
    wide = torch.float64 if dtype == "fp64" else torch.float32
    experts = spec.dims["E"]

    def run(
        latent_tokens: Any, selected_experts: Any, mixture_weights: Any, shared_output: Any, packed_weights: Any,
        scale_bytes: Any, output: Any, threads: int,
    ) -> int:  # fmt: skip
        selected, result = tensor_of(selected_experts, ""), tensor_of(output, dtype)
        bad = ((selected < 0) | (selected >= experts)).any(dim=1) if selected.numel() else selected.new_zeros(0)
        if bad.any():
            result.fill_(math.nan)
            return int(bad.to(torch.uint8).argmax()) + 1
        x, mixture = tensor_of(latent_tokens, dtype).to(wide), tensor_of(mixture_weights, mixture_dtype).to(wide)
        total = tensor_of(shared_output, dtype).to(wide, copy=True)
        packed, scales = tensor_of(packed_weights, ""), tensor_of(scale_bytes, "")
        for expert in torch.unique(selected).tolist():
            chosen = selected == expert
            rows = chosen.any(dim=1).nonzero().squeeze(1)
            factors = torch.where(chosen[rows], mixture[rows], 0).sum(dim=1, keepdim=True)
            mine = x[rows]
            for part in _row_parts(packed):
                weight = decoded(packed[expert, part], scales[expert, part], wide)
                total[rows, part] += factors * _product(mine, weight)
        result.copy_(total)
        return 0

    return run


def _row_parts(packed: torch.Tensor) -> Iterator[slice]:
    """Ranges of output rows. On a CPU their values fit its cache: a whole expert of 2,880 squared at once took four
    times as long."""
    _, rows, groups, _ = packed.shape
    step = max(1, CPU_VALUES // (32 * groups)) if packed.device.type == "cpu" else max(1, rows)
    for begin in range(0, rows, step):
        yield slice(begin, begin + step)


def _product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """``x weight^T``. On a CPU in one thread: the library cuts a product by the number of threads, and then rounds
    otherwise (seen with 8 threads)."""
    if x.device.type != "cpu":
        return x @ weight.T
    with _one_thread:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return x @ weight.T
        finally:
            torch.set_num_threads(threads)


def tensor_of(values: Any, dtype: str) -> torch.Tensor:
    """``values`` as a tensor that shares its memory; numpy's uint16 bit patterns as bf16 where ``dtype`` says so."""
    if not isinstance(values, np.ndarray):
        given: torch.Tensor = values
        return given
    if dtype == "bf16":
        return torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(values)


def decoded(packed: torch.Tensor, scales: torch.Tensor, wide: torch.dtype) -> torch.Tensor:
    """Values ``[N, 32 G]`` of one expert's packed ``[N, G, 16]`` and scales ``[N, G]``, in ``wide`` on their device."""
    pairs, powers = _tables(wide, packed.device)
    values = torch.nn.functional.embedding(packed.int(), pairs) * powers[scales.int()][..., None, None]
    return values.reshape(len(packed), -1)


@cache
def _tables(wide: torch.dtype, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Both values of each byte ``[256, 2]``, low nibble first, and 2**(s - 127) of each scale byte ``[256]``."""
    codes = torch.tensor(CODES, dtype=wide, device=device)
    bytes_ = torch.arange(256, device=device)
    powers = [math.ldexp(1.0, s - 127) for s in range(255)] + [math.nan]
    return torch.stack([codes[bytes_ & 15], codes[bytes_ >> 4]], dim=1), torch.tensor(powers, dtype=wide, device=device)
