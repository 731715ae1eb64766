"""Inputs of the MXFP4 expert linear, and a plain statement of what it computes: loops over tables, in fp64."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from kernelmap.models.policy import Policy
from kernelmap.ops.calling import call
from kernelmap.ops.mxfp4 import GROUP
from kernelmap.ops.selection import Chooser, default_chooser

CODES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Inputs:
    """The arguments in the order of the function."""

    latent_tokens: Tensor
    packed_weights: Tensor
    scale_bytes: Tensor
    selected_experts: Tensor
    mixture_weights: Tensor
    shared_output: Tensor

    def __iter__(self):
        return iter(vars(self).values())

    def but(self, **changes: Tensor) -> Inputs:
        return replace(self, **changes)


def make(
    dtype: torch.dtype = torch.float32, *, tokens: int = 3, experts: int = 5, out: int = 7, groups: int = 2,
    slots: int = 2, seed: int = 0,
) -> Inputs:  # fmt: skip
    g = torch.Generator().manual_seed(seed)
    return Inputs(
        torch.randn(tokens, 32 * groups, generator=g).to(dtype),
        torch.randint(0, 256, (experts, out, groups, 16), dtype=torch.uint8, generator=g),
        torch.randint(120, 129, (experts, out, groups), dtype=torch.uint8, generator=g),
        torch.randint(0, experts, (tokens, slots), generator=g),
        torch.rand(tokens, slots, generator=g).to(dtype),
        torch.randn(tokens, out, generator=g).to(dtype),
    )


def power(scale: int) -> float:
    return math.nan if scale == 255 else math.ldexp(1.0, scale - 127)


def decode(packed: Tensor, scales: Tensor, wide: torch.dtype = torch.float64) -> Tensor:
    """[out, 32 G] from [out, G, 16] and [out, G]: value by value."""
    rows = [
        [CODES[code] * power(scale) for scale, raw in zip(srow, prow, strict=True) for byte in raw
         for code in (byte & 15, byte >> 4)]
        for srow, prow in zip(scales.tolist(), packed.tolist(), strict=True)
    ]  # fmt: skip
    return torch.tensor(rows, dtype=torch.float64).to(wide)


def expected(
    given: Inputs,
    decoder: Callable[[Tensor, Tensor], Tensor] = decode,
    shared: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """The result in fp64, unrounded; ``decoder`` and ``shared`` are where the classic mistakes are put in."""
    total = (shared or Tensor.clone)(given.shared_output.double())
    packed = given.packed_weights.reshape(*given.scale_bytes.shape, 16)
    for t, experts in enumerate(given.selected_experts.tolist()):
        for s, expert in enumerate(experts):
            weight = decoder(packed[expert], given.scale_bytes[expert])
            total[t] += given.mixture_weights[t, s].double() * (weight @ given.latent_tokens[t].double())
    return total


def magnitude(given: Inputs) -> Tensor:
    """The sum of absolute terms: what a rounding error is measured by."""
    total = given.shared_output.double().abs()
    packed = given.packed_weights.reshape(*given.scale_bytes.shape, 16)
    for t, experts in enumerate(given.selected_experts.tolist()):
        for s, expert in enumerate(experts):
            weight = decode(packed[expert], given.scale_bytes[expert]).abs()
            total[t] += given.mixture_weights[t, s].double().abs() * (weight @ given.latent_tokens[t].double().abs())
    return total


def close(given: Inputs, result: Tensor, *, reference: Tensor | None = None) -> bool:
    """Within what the accumulator may lose, and one rounding to the result's dtype."""
    want = expected(given) if reference is None else reference
    lost = (1e-14 if result.dtype == torch.float64 else 1e-6) * magnitude(given)
    rounding = torch.finfo(result.dtype).eps / 2 * want.abs() + torch.finfo(result.dtype).smallest_normal
    return bool(((result.double() - want).abs() <= lost + rounding).all())


PROVIDERS = ("mxfp4_expert_linear_numba", "mxfp4_expert_linear_torch")


@cache
def chooser(provider: str) -> Chooser:
    """This machine's chooser with the other provider excluded."""
    own = default_chooser()
    others = tuple(name for name in PROVIDERS if name != provider)
    return Chooser(own.registry, own.host, Policy(exclude=others))


def run(provider: str, given: Inputs) -> Tensor:
    """The result by one named provider, through resolver and argument checks."""
    result = call(chooser(provider), GROUP, vars(given), rows="T")["output"]
    assert {decision.provider for decision in chooser(provider).decisions} == {provider}
    return result


def bits(tensor: Tensor) -> bytes:
    return tensor.detach().contiguous().view(torch.uint8).numpy().tobytes()
