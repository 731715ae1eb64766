"""Search for the K-quants with a minimum (q4_k, q5_k): x ~ scale * code + offset in sub-blocks of 32.

The published K-quant approach, from the mathematics, with plain (unweighted) squared error, which is what rms measures:
1. each sub-block: codes for a row of candidate steps, for each the least-squares scale and offset, the best kept;
2. each super-block: its scales and offsets as 6-bit multiples of two fp16 numbers;
3. refit: neighbouring multiples tried, then both fp16 numbers solved again by least squares, kept where better.
Blocks are at unit size (``halves.unit``).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from kernelmap_providers.formats.bits import Array, Bytes, Flags, Floats
from kernelmap_providers.formats.encode.halves import ratio, rounded, unit

SUBS, SIZE, LEVELS = 8, 32, 63
ROUNDS = 2
"""Refits. On Gaussian weights the second lowers the rms error by 0.2 percent, a third would by 0.05."""
SPREADS = tuple(sorted(np.arange(-10, 11) / 10, key=abs))
"""Candidate steps of a sub-block: its width divided by the highest code plus one of these, the plain one first."""
NOISE = 1e-9
"""A later candidate must be better by this share of the sub-block's energy: for constant sub-blocks all are equally
good but for rounding, and the plain one keeps powers of two exact."""
TRIED = 8
"""Steps of a super-block tried: its largest scale divided by 63, 62, ... Where sub-blocks are fitted almost exactly
(constant or sparse weights) fp16's rounding of the step is the whole error, and one in eight is lucky."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Super-blocks as found: value = d * scales * codes - dmin * minima."""

    d: Array
    """fp64 ``[n]``, an fp16 number; infinite if beyond fp16. So is ``dmin``."""
    dmin: Array
    scales: Bytes
    """uint8 ``[n, 8]`` below 64. So are ``minima``."""
    minima: Bytes
    codes: Bytes
    """uint8 ``[n, 8, 32]``."""
    error: Array
    """Sum of squares ``[n]`` at unit size; infinite where a scale is."""


def search(blocks: Floats, top: int) -> tuple[Fit, Flags]:
    """(fit, refused ``[n]``) of blocks ``[n, 256]`` with codes 0 to ``top``.

    Minima are stored as 0 to 63 times one ``dmin``, so offsets of a super-block share a sign. Ordinary weights straddle
    zero, and d > 0 with offsets below zero serves them. Where a sub-block keeps to one side of zero, or a scale is
    beyond fp16, the other signs of d and of the offsets are tried as well. Trying d < 0 on every block took twice the
    time for 0.4 percent less rms error on Gaussian weights.
    """
    scaled, exponent = unit(blocks)
    x = scaled.reshape(-1, SUBS, SIZE)
    best = _signed(x, exponent, top, 1, -1)
    one_sided = (x.min(axis=-1) > 0) | (x.max(axis=-1) < 0)
    others = np.flatnonzero(one_sided.any(axis=-1) | ~np.isfinite(best.error))
    if len(others):
        for flip, side in ((-1, -1), (1, 1), (-1, 1)):
            _keep_better(best, _signed(x[others], exponent[others], top, flip, side), others)
    refused: Any = ~np.isfinite(best.error)
    return best, refused


def _keep_better(best: Fit, tried: Fit, places: Array) -> None:
    """Write into ``best`` at ``places`` the super-blocks of ``tried`` with less error."""
    better = tried.error < best.error[places]
    for name in Fit.__dataclass_fields__:
        getattr(best, name)[places[better]] = getattr(tried, name)[better]


def _signed(x: Floats, exponent: Array, top: int, flip: int, side: int) -> Fit:
    """The fit of ``flip * x`` with d >= 0 and offsets of sign ``side``, told in the signs of ``x``.

    Offsets above zero can only serve blocks that are nowhere below it: others get an infinite error.
    """
    x = x * np.float32(flip)
    scale, offset = _sub_blocks(x.reshape(-1, SIZE), top, side)
    scale, depth = scale.reshape(-1, SUBS), side * offset.reshape(-1, SUBS)
    d, dmin = _steps(x, scale, depth, exponent, top, side)
    scales, minima = _multiples(scale, d), _multiples(depth, dmin)
    for _ in range(ROUNDS):
        scales, minima = _neighbours(x, d, side * dmin, scales, minima, top)
        d, dmin = _refit(x, exponent, d, dmin, scales, minima, top, side)
    codes, error = _code(x, _times(d, scales), _times(side * dmin, minima), top)
    lost = ~np.isfinite(d + dmin) | ((side > 0) & (x.min(axis=(1, 2)) < 0))
    total = np.where(lost, np.inf, error.sum(axis=-1, dtype=np.float64))
    d, dmin = np.ldexp(flip * d, exponent), np.ldexp(-flip * side * dmin, exponent)
    return Fit(d, dmin, scales.astype(np.uint8), minima.astype(np.uint8), codes.astype(np.uint8), total)


def _sub_blocks(x: Floats, top: int, side: int) -> tuple[Floats, Floats]:
    """Best (scale, offset), each ``[m]``, of sub-blocks ``[m, 32]``, offsets of sign ``side``."""
    low = x.min(axis=-1)
    low = np.minimum(low, np.float32(0)) if side < 0 else np.maximum(low, np.float32(0))
    width = x.max(axis=-1) - low
    best = np.stack([np.zeros_like(low), low])
    least = np.full_like(low, np.inf)
    noise = np.float32(NOISE) * np.einsum("mi,mi->m", x, x)
    for spread in SPREADS:
        codes, _ = _code(x, width / np.float32(top + spread), low, top)
        found = _solve(x, codes, side)
        _, error = _code(x, found[0], found[1], top)
        better = error < least - noise
        best, least = np.where(better, found, best), np.where(better, error, least)
    return best[0], best[1]


def _steps(x: Floats, scale: Floats, depth: Floats, exponent: Array, top: int, side: int) -> tuple[Array, Array]:
    """(d, dmin) ``[n]`` for wanted scales and offset magnitudes ``[n, 8]``: the best of ``TRIED`` each, dmin first."""

    def error(d: Array, dmin: Array) -> Array:
        lengths = _times(d, _multiples(scale, d)), _times(side * dmin, _multiples(depth, dmin))
        total: Array = _code(x, *lengths, top)[1].sum(axis=-1)
        return np.where(np.isfinite(d + dmin), total, np.inf)

    def steps(wanted: Floats) -> list[Array]:
        return [rounded(wanted.max(axis=-1) / k, exponent, up=True) for k in range(LEVELS, LEVELS - TRIED, -1)]

    d, dmin = steps(scale), steps(depth)
    chosen = _best(dmin, [error(d[0], one) for one in dmin])
    return _best(d, [error(one, chosen) for one in d]), chosen


def _best(steps: list[Array], errors: list[Array]) -> Array:
    """The step of least error in each super-block, the first of equals."""
    picked: Array = np.take_along_axis(np.stack(steps), np.stack(errors).argmin(axis=0)[None], axis=0)[0]
    return picked


def _solve(x: Floats, codes: Floats, side: int) -> Floats:
    """Least-squares (scale, offset) ``[2, m]`` of ``x ~ scale * codes + offset``, both ``[m, 32]``, scale >= 0.

    An offset that would have the wrong sign is zero, and the scale is solved alone.
    """
    sum_x, sum_q = x.sum(axis=-1), codes.sum(axis=-1)
    sum_xq, sum_qq = np.einsum("mi,mi->m", x, codes), np.einsum("mi,mi->m", codes, codes)
    scale = np.maximum(ratio(SIZE * sum_xq - sum_x * sum_q, SIZE * sum_qq - sum_q * sum_q), 0)
    offset = (sum_x - scale * sum_q) / SIZE
    wrong = side * offset < 0
    alone = np.maximum(ratio(sum_xq, sum_qq), 0)
    return np.stack([np.where(wrong, alone, scale), np.where(wrong, 0, offset)]).astype(np.float32)


def _code(x: Floats, scale: Floats, offset: Floats, top: int) -> tuple[Floats, Floats]:
    """(nearest codes 0 to ``top`` as fp32 ``[..., 32]``, sum of squares ``[...]``) of sub-blocks for given scales."""
    inverse = ratio(np.ones_like(scale), scale)
    codes = (x - offset[..., None]) * inverse[..., None]
    np.clip(np.rint(codes, out=codes), 0, top, out=codes)
    rest = codes * scale[..., None]
    rest += offset[..., None]
    rest -= x
    return codes, np.einsum("...i,...i->...", rest, rest)


def _multiples(wanted: Floats, step: Array) -> Floats:
    """6-bit multiples ``[n, 8]`` of ``step [n]`` nearest to ``wanted [n, 8]``."""
    multiples: Floats = np.clip(np.rint(ratio(wanted, step[:, None])), 0, LEVELS).astype(np.float32)
    return multiples


def _times(step: Array, multiples: Floats) -> Floats:
    """``step [n]`` times its multiples, ``[n, 8]``; 0 for a step that is infinite, which is refused in the end."""
    return (np.where(np.isfinite(step), step, 0)[:, None] * multiples).astype(np.float32)


def _neighbours(x: Floats, d: Array, dmin: Array, scales: Floats, minima: Floats, top: int) -> tuple[Floats, Floats]:
    """(scales, minima), each the given or a neighbour of it, that code every sub-block best."""
    best = np.stack([scales, minima])
    _, least = _code(x, _times(d, scales), _times(dmin, minima), top)
    for up, down in product((-1, 0, 1), repeat=2):
        tried = np.clip(np.stack([scales + np.float32(up), minima + np.float32(down)]), 0, LEVELS)
        _, error = _code(x, _times(d, tried[0]), _times(dmin, tried[1]), top)
        best, least = np.where(error < least, tried, best), np.minimum(error, least)
    return best[0], best[1]


def _refit(
    x: Floats, exponent: Array, d: Array, dmin: Array, scales: Floats, minima: Floats, top: int, side: int
) -> tuple[Array, Array]:
    """(d, dmin) ``[n]`` solved by least squares for the codes they now give; the old ones where those are no worse."""
    codes, before = _code(x, _times(d, scales), _times(side * dmin, minima), top)
    size = (len(x), -1)
    a, b = (codes * scales[..., None]).reshape(size), np.repeat(side * minima, SIZE, axis=-1)
    aa, ab, bb = (np.einsum("ni,ni->n", p, q, dtype=np.float64) for p, q in ((a, a), (a, b), (b, b)))
    ax, bx = (np.einsum("ni,ni->n", p, x.reshape(size), dtype=np.float64) for p in (a, b))
    determinant = aa * bb - ab * ab
    new_d = np.where(determinant > 0, ratio(ax * bb - bx * ab, determinant), ratio(ax, aa))
    new_min = np.where(determinant > 0, ratio(bx * aa - ax * ab, determinant), 0)
    new_d, new_min = (rounded(np.maximum(new, 0), exponent, up=False) for new in (new_d, new_min))
    _, after = _code(x, _times(new_d, scales), _times(side * new_min, minima), top)
    better = (after.sum(axis=-1) < before.sum(axis=-1)) & np.isfinite(new_d + new_min) & np.isfinite(d + dmin)
    return np.where(better, new_d, d), np.where(better, new_min, dmin)
