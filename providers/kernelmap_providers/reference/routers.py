"""Oracles of the routers. They are different contracts: never one for the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kernelmap.spec import BuildSpec
from kernelmap_providers.reference.elementary import F32, Floats, exp32, sigmoid, sum_lanes
from kernelmap_providers.reference.refusal import RefusedRow

Array = np.ndarray[Any, Any]
CLAMP = F32(6.103515625e-5)
EPS = F32(1e-20)


def llama_softmax_topk(spec: BuildSpec, logits: Floats) -> dict[str, Array]:
    """indices and weights ``[R, K]`` of logits ``[R, E]``: the K largest softmax p, as p / max(sum p, 2**-14) * scale.

    Raises RefusedRow as `softmax_topk_raw`. Source: llama.cpp, llm_graph_context::build_moe_ffn.
    """
    return _softmax_topk(spec, logits, lambda selected: selected / max(_chain_sum(selected), CLAMP))


def softmax_topk_raw(spec: BuildSpec, logits: Floats) -> dict[str, Array]:
    """As `llama_softmax_topk` without renormalisation: weights p * scale. A logit of -inf has probability 0.

    Raises RefusedRow for a row with a NaN, or whose largest logit is infinite: its softmax is undefined.
    """
    return _softmax_topk(spec, logits, lambda selected: selected)


def softmax_topk_renorm(spec: BuildSpec, logits: Floats) -> dict[str, Array]:
    """As `llama_softmax_topk` without the clamp: weights p / sum p * scale. Raises RefusedRow as `softmax_topk_raw`.

    Source: transformers, Qwen3MoeTopKRouter with norm_topk_prob.
    """
    return _softmax_topk(spec, logits, lambda selected: selected / _chain_sum(selected))


def topk_softmax_of_selected(spec: BuildSpec, logits: Floats, router_bias: Floats | None = None) -> dict[str, Array]:
    """indices and weights ``[R, K]``: the K largest of logits + bias, weights the softmax over those K, in slot order.

    Raises RefusedRow as `softmax_topk_raw`, of the biased logits. Source: gpt-oss model card; llama.cpp,
    LLAMA_EXPERT_GATING_FUNC_TYPE_SOFTMAX_WEIGHT.
    """
    indices, weights = _outputs(spec, len(logits))
    for row, logit in enumerate(logits):
        with np.errstate(invalid="ignore", over="ignore"):
            choice = logit if router_bias is None else logit + router_bias
        _demand_finite_largest(row, choice)
        chosen = _largest(choice, range(len(choice)), spec.dims["K"])
        e = exp32(choice[chosen] - choice.max())
        weights[row] = e / _chain_sum(e)
        indices[row] = chosen
    return {"indices": indices, "weights": weights}


def sigmoid_group_limited_topk(
    spec: BuildSpec, logits: Floats, correction_bias: Floats | None = None
) -> dict[str, Array]:
    """indices and weights ``[R, K]`` of logits ``[R, E]``: selection by sigmoid + bias, weights from the plain sigmoid.

    ``n_group`` groups of experts, of which the ``topk_group`` with the largest sum of their two best stay.
    Raises RefusedRow for logits that are NaN; the sigmoid of an infinity is 0 or 1.
    Source: DeepSeek-V3 technical report, section 2.1.2.
    """
    groups = int(spec.params["n_group"])
    indices, weights = _outputs(spec, len(logits))
    for row, logit in enumerate(logits):
        if np.isnan(logit).any():
            raise RefusedRow(row, "logits hold a NaN")
        raw = sigmoid(logit)
        choice = raw if correction_bias is None else raw + correction_bias
        allowed = _experts_of_best_groups(choice, groups, int(spec.params["topk_group"]))
        chosen = _largest(choice, allowed, spec.dims["K"])
        weights[row] = _renormalized(raw[chosen], str(spec.params["renormalize"])) * F32(spec.params["scale"])
        indices[row] = chosen
    return {"indices": indices, "weights": weights}


def _softmax_topk(spec: BuildSpec, logits: Floats, renormalized: Callable[[Floats], Floats]) -> dict[str, Array]:
    indices, weights = _outputs(spec, len(logits))
    for row, logit in enumerate(logits):
        _demand_finite_largest(row, logit)
        e = exp32(logit - logit.max())
        p = e / sum_lanes(e)
        chosen = _largest(p, range(len(p)), spec.dims["K"])
        weights[row] = renormalized(p[chosen]) * F32(spec.params["scale"])
        indices[row] = chosen
    return {"indices": indices, "weights": weights}


def _demand_finite_largest(row: int, logits: Floats) -> None:
    if not np.isfinite(logits.max()):
        raise RefusedRow(row, "logits hold a NaN, or the largest is infinite")


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
