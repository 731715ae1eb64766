"""Builders, oracles left out: the toy circuit's test states the model independently."""

from __future__ import annotations

import numpy as np


def product(x, weight):
    """x · weightᵀ, one chain over the columns for each value: the same bytes however many rows come together."""
    total = np.zeros((len(x), len(weight)), np.float32)
    for column in range(x.shape[1]):
        total += x[:, column, None] * weight[None, :, column]
    return total


def rope_cache(spec):
    base = spec.params["base"]

    def run(cos, threads):
        steps, width = cos.shape
        angles = np.arange(steps)[:, None] * base ** (-np.arange(width) / width)
        cos[...] = np.cos(angles).astype(np.float32)
        return 0

    return run


def embed(spec):
    def run(tokens, table, x, threads):
        bad = (tokens < 0) | (tokens >= len(table))
        if bad.any():
            return 1 + int(np.argmax(bad))
        x[...] = table[tokens]
        return 0

    return run


def scale(spec):
    """x times a weight, if there is one; ``mode`` doubles or keeps."""
    factor = np.float32(2 if spec.params["mode"] == "double" else 1)

    def run(x, weight, y, threads):
        y[...] = x * factor if weight is None else x * weight * factor
        return 0

    return run


def add(spec):
    def run(a, b, y, threads):
        y[...] = a + b
        return 0

    return run


def attend(spec):
    """Adds, for each token, the cached rows of the last ``window`` positions, turned by the rope cache."""
    window = spec.params["window"]

    def run(x, cos, positions, query, cache, y, scratch, threads):
        bad = (positions < 0) | (positions >= len(cache))
        if bad.any():
            return 1 + int(np.argmax(bad))
        turned = scratch.view(np.float32).reshape(x.shape)
        turned[...] = product(x, query) * cos[positions]
        cache[positions] = turned.astype(cache.dtype)
        for row, at in enumerate(positions):
            y[row] = cache[max(0, at + 1 - window) : at + 1].astype(np.float32).sum(axis=0)
        return 0

    return run


def scan(spec):
    def run(x, decay, memory, y, threads):
        for row in range(len(x)):
            memory[...] = memory * decay + x[row]
            y[row] = memory
        return 0

    return run


def mlp(spec):
    def run(x, gate, up, down, y, threads):
        y[...] = product(np.maximum(product(x, gate), 0) * product(x, up), down)
        return 0

    return run


def mean(spec):
    def run(history, y, threads):
        y[...] = history.sum(axis=0) / np.float32(len(history))
        return 0

    return run


def project(spec):
    def run(x, weight, y, threads):
        y[...] = product(x, weight)
        return 0

    return run


def softcap(spec):
    cap = np.float32(spec.params["cap"])

    def run(x, y, threads):
        y[...] = np.tanh(x / cap) * cap
        return 0

    return run


def count(spec):
    def run(x, total, y, threads):
        total += np.float32(len(x))
        y[...] = total
        return 0

    return run


def oracle(spec, **given):
    raise AssertionError("the toy model is stated in its test")
