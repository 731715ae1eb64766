"""Search for q6_k: x ~ scale * code in sub-blocks of 16, codes -32 to 31, scales int8 multiples of one fp16 number.

The steps are those of ``affine`` without an offset; blocks are at unit size (``halves.unit``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kernelmap_providers.formats.bits import Array, Flags, Floats
from kernelmap_providers.formats.encode.affine import NOISE
from kernelmap_providers.formats.encode.halves import ratio, rounded, unit

SUBS, SIZE = 16, 16
LOW, HIGH = -32, 31
LEAST, MOST = -128, 127
ROUNDS = 2
"""Refits, as in ``affine``."""
ENDS = tuple(end + spread for spread in sorted(np.arange(-10, 11) / 10, key=abs) for end in (LOW, HIGH))
"""Candidate steps of a sub-block: its largest value divided by one of these, the end codes themselves first."""
STEPS = (-128, 127, -127, 126, -126, 125, -125, 124)
"""Steps of a super-block tried: its largest scale divided by one of these. See ``affine.TRIED``."""

Signed = np.ndarray[Any, np.dtype[np.int8]]


@dataclass(frozen=True, slots=True)
class Fit:
    """Super-blocks as found: value = d * scales * codes."""

    d: Array
    """fp64 ``[n]``, an fp16 number; infinite if beyond fp16."""
    scales: Signed
    """int8 ``[n, 16]``."""
    codes: Signed
    """int8 ``[n, 16, 16]``, -32 to 31."""


def search(blocks: Floats) -> tuple[Fit, Flags]:
    """(fit, refused ``[n]``) of blocks ``[n, 256]``."""
    scaled, exponent = unit(blocks)
    x = scaled.reshape(-1, SUBS, SIZE)
    scale = _sub_blocks(x.reshape(-1, SIZE)).reshape(-1, SUBS)
    widest = np.take_along_axis(scale, np.abs(scale).argmax(axis=-1)[:, None], axis=-1)[:, 0]
    d = _step(x, scale, widest, exponent)
    scales = _multiples(scale, d)
    for _ in range(ROUNDS):
        scales = _neighbours(x, d, scales)
        d = _refit(x, exponent, d, scales)
    codes, _ = _code(x, _times(d, scales))
    refused: Any = ~np.isfinite(d)
    return Fit(np.ldexp(d, exponent), scales.astype(np.int8), codes.astype(np.int8)), refused


def _sub_blocks(x: Floats) -> Floats:
    """Best scale ``[m]`` of sub-blocks ``[m, 16]``: the value of largest magnitude near either end code."""
    peak = np.take_along_axis(x, np.abs(x).argmax(axis=-1)[:, None], axis=-1)[:, 0]
    best, least = np.zeros_like(peak), np.full_like(peak, np.inf)
    noise = np.float32(NOISE) * np.einsum("mi,mi->m", x, x)
    for end in ENDS:
        codes, _ = _code(x, peak / np.float32(end))
        found = ratio(np.einsum("mi,mi->m", x, codes), np.einsum("mi,mi->m", codes, codes)).astype(np.float32)
        _, error = _code(x, found)
        better = error < least - noise
        best, least = np.where(better, found, best), np.where(better, error, least)
    return best


def _step(x: Floats, scale: Floats, widest: Floats, exponent: Array) -> Array:
    """d ``[n]`` for wanted scales ``[n, 16]`` and the largest ``[n]`` of them: the best of ``STEPS``."""
    tried = np.stack([rounded(widest / step, exponent, up=True) for step in STEPS])
    errors = np.stack([_code(x, _times(d, _multiples(scale, d)))[1].sum(axis=-1) for d in tried])
    errors = np.where(np.isfinite(tried), errors, np.inf)
    picked: Array = np.take_along_axis(tried, errors.argmin(axis=0)[None], axis=0)[0]
    return picked


def _multiples(wanted: Floats, d: Array) -> Floats:
    """int8 multiples ``[n, 16]`` of ``d [n]`` nearest to ``wanted [n, 16]``."""
    multiples: Floats = np.clip(np.rint(ratio(wanted, d[:, None])), LEAST, MOST).astype(np.float32)
    return multiples


def _code(x: Floats, scale: Floats) -> tuple[Floats, Floats]:
    """(nearest codes as fp32 ``[..., 16]``, sum of squares ``[...]``) of sub-blocks for given scales."""
    codes = x * ratio(np.ones_like(scale), scale)[..., None]
    np.clip(np.rint(codes, out=codes), LOW, HIGH, out=codes)
    rest = codes * scale[..., None]
    rest -= x
    return codes, np.einsum("...i,...i->...", rest, rest)


def _times(d: Array, scales: Floats) -> Floats:
    """``d [n]`` times its multiples, ``[n, 16]``; 0 for a d that is infinite, which is refused in the end."""
    return (np.where(np.isfinite(d), d, 0)[:, None] * scales).astype(np.float32)


def _neighbours(x: Floats, d: Array, scales: Floats) -> Floats:
    """Scales, each the given or a neighbour of it, that code every sub-block best."""
    best = scales
    _, least = _code(x, _times(d, scales))
    for move in (-1, 1):
        tried = np.clip(scales + np.float32(move), LEAST, MOST)
        _, error = _code(x, _times(d, tried))
        best, least = np.where(error < least, tried, best), np.minimum(error, least)
    return best


def _refit(x: Floats, exponent: Array, d: Array, scales: Floats) -> Array:
    """d ``[n]`` solved by least squares for the codes it now gives; the old one where that is no worse."""
    codes, before = _code(x, _times(d, scales))
    a, flat = (codes * scales[..., None]).reshape(len(x), -1), x.reshape(len(x), -1)
    ax, aa = (np.einsum("ni,ni->n", a, p, dtype=np.float64) for p in (flat, a))
    new = rounded(ratio(ax, aa), exponent, up=False)
    _, after = _code(x, _times(new, scales))
    better = (after.sum(axis=-1) < before.sum(axis=-1)) & np.isfinite(new) & np.isfinite(d)
    return np.where(better, new, d)
