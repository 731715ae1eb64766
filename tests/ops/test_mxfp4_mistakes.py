"""The classic mistakes with MXFP4 experts, each made on purpose: the mistaken result is another one than ours."""

from __future__ import annotations

import math

import pytest
import torch
from mxfp4_cases import CODES, PROVIDERS, bits, close, decode, expected, make, run
from torch import Tensor

both = pytest.mark.parametrize("provider", PROVIDERS)


def high_nibble_first(packed: Tensor, scales: Tensor) -> Tensor:
    return decode((packed >> 4) | (packed << 4), scales)


def one_scale_for_the_matrix(packed: Tensor, scales: Tensor) -> Tensor:
    return decode(packed, scales[:1, :1].expand_as(scales))


def scales_shared_across_rows(packed: Tensor, scales: Tensor) -> Tensor:
    return decode(packed, scales[:1].expand_as(scales))


def bias_with_the_wrong_sign(packed: Tensor, scales: Tensor) -> Tensor:
    """2**(s + 127) instead of 2**(s - 127)."""
    return decode(packed, scales) * math.ldexp(1.0, 254)


def exponent_negated(packed: Tensor, scales: Tensor) -> Tensor:
    """2**(127 - s)."""
    return decode(packed, 254 - scales)


MISTAKES = (
    high_nibble_first, one_scale_for_the_matrix, scales_shared_across_rows, bias_with_the_wrong_sign, exponent_negated,
)  # fmt: skip


@both
@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("tokens", [2, 6])
def test_decoding_mistakes(provider: str, mistake, tokens: int) -> None:
    given = make(tokens=tokens)
    result = run(provider, given)
    assert close(given, result)
    assert not close(given, result, reference=expected(given, mistake))


@both
def test_decoding_every_expert(provider: str) -> None:
    """A product with all experts, those that were not selected with weight zero: a NaN among them spreads."""
    given = make(experts=4)
    given = given.but(selected_experts=given.selected_experts % 2)
    scales = given.scale_bytes.clone()
    scales[3, 1, 0] = 255
    given = given.but(scale_bytes=scales)
    shares = torch.zeros(3, 4, dtype=torch.float64).scatter_add_(
        1, given.selected_experts, given.mixture_weights.double()
    )
    weights = torch.stack([decode(given.packed_weights[e], scales[e]) for e in range(4)])
    mistaken = given.shared_output + torch.einsum("te,eok,tk->to", shares, weights, given.latent_tokens.double())
    assert mistaken[:, 1].isnan().all()
    result = run(provider, given)
    assert result.isfinite().all() and close(given, result)


def as_mxfp4(values: Tensor) -> Tensor:
    """Rows rounded to E2M1 under a shared power of two."""
    scale = torch.exp2(torch.floor(torch.log2(values.abs().amax(dim=1, keepdim=True))) - 2)
    grid = torch.tensor(CODES, dtype=values.dtype)
    nearest = (values / scale).unsqueeze(-1).sub(grid).abs().argmin(dim=-1)
    return grid[nearest] * scale


@both
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_quantizing_the_shared_output(provider: str, dtype: torch.dtype) -> None:
    """The shared output is added as it is: with mixture weights of zero it comes back bit for bit."""
    given = make(dtype)
    result = run(provider, given)
    assert close(given, result)
    assert not close(given, result, reference=expected(given, shared=as_mxfp4))
    silent = given.but(mixture_weights=torch.zeros_like(given.mixture_weights))
    assert bits(run(provider, silent)) == bits(given.shared_output)
