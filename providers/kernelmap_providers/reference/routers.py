"""Oracles of the two routers. They are different contracts: never one for the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kernelmap.spec import BuildSpec
from kernelmap_providers.reference.elementary import F32, Floats, exp32, sigmoid, sum_lanes
from kernelmap_providers.reference.refusal import demand_finite

Array = np.ndarray[Any, Any]
CLAMP = F32(6.103515625e-5)
EPS = F32(1e-20)


def llama_softmax_topk(spec: BuildSpec, logits: Floats) -> dict[str, Array]:
    """indices and weights ``[R, K]`` of logits ``[R, E]``: the K largest softmax p, as p / max(sum p, 2**-14) * scale.

    Raises RefusedRow for logits that are NaN or infinite. Source: llama.cpp, llm_graph_context::build_moe_ffn.
    """
    indices, weights = _outputs(spec, len(logits))
    for row, logit in enumerate(logits):
        demand_finite(row, logit, "logits")
        e = exp32(logit - logit.max())
        p = e / sum_lanes(e)
        chosen = _largest(p, range(len(p)), spec.dims["K"])
        selected = p[chosen]
        weights[row] = selected / max(_chain_sum(selected), CLAMP) * F32(spec.params["scale"])
        indices[row] = chosen
    return {"indices": indices, "weights": weights}


def sigmoid_group_limited_topk(
    spec: BuildSpec, logits: Floats, correction_bias: Floats | None = None
) -> dict[str, Array]:
    """indices and weights ``[R, K]`` of logits ``[R, E]``: selection by sigmoid + bias, weights from the plain sigmoid.

    ``n_group`` groups of experts, of which the ``topk_group`` with the largest sum of their two best stay.
    Raises RefusedRow for logits that are NaN or infinite. Source: DeepSeek-V3 technical report, section 2.1.2.
    """
    groups = int(spec.params["n_group"])
    indices, weights = _outputs(spec, len(logits))
    for row, logit in enumerate(logits):
        demand_finite(row, logit, "logits")
        raw = sigmoid(logit)
        choice = raw if correction_bias is None else raw + correction_bias
        allowed = _experts_of_best_groups(choice, groups, int(spec.params["topk_group"]))
        chosen = _largest(choice, allowed, spec.dims["K"])
        weights[row] = _renormalized(raw[chosen], str(spec.params["renormalize"])) * F32(spec.params["scale"])
        indices[row] = chosen
    return {"indices": indices, "weights": weights}


def _outputs(spec: BuildSpec, rows: int) -> tuple[Array, Array]:
    shape = (rows, spec.dims["K"])
    return np.zeros(shape, np.int32), np.zeros(shape, np.float32)


def _largest(score: Floats, among: Sequence[int], count: int) -> list[int]:
    """Ids by descending score, equal scores by the lower id."""
    return sorted(among, key=lambda i: (-score[i], i))[:count]


def _experts_of_best_groups(choice: Floats, groups: int, keep: int) -> list[int]:
    if groups == 1:
        return list(range(len(choice)))
    by_group = choice.reshape(groups, -1)
    score = np.array([_two_largest_sum(group) for group in by_group], np.float32)
    size = by_group.shape[1]
    return [group * size + i for group in sorted(_largest(score, range(groups), keep)) for i in range(size)]


def _two_largest_sum(group: Floats) -> np.float32:
    ordered = np.sort(group)
    return np.float32(ordered[-1] + ordered[-2])


def _chain_sum(values: Floats) -> np.float32:
    """Sum in slot order."""
    total = F32(0)
    for value in values:
        total = total + value
    return total


def _renormalized(selected: Floats, rule: str) -> Floats:
    if rule == "none":
        return selected
    total = _chain_sum(selected)
    return selected / (max(total, CLAMP) if rule == "clamp" else total + EPS)
