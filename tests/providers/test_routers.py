"""Routers on adversarial logits: their oracles against torch, every variant and thread count against the oracle."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from calling import DATA, SIGMOID, SOFTMAX, Subject

from kernelmap_providers.reference.refusal import RefusedRow

torch = pytest.importorskip("torch")
Array = np.ndarray[Any, Any]
RAW = "moe_softmax_topk_router_raw_f32"
RENORM = "moe_softmax_topk_router_renorm_f32"
SELECTED = "moe_topk_softmax_of_selected_router_f32"
SCALE = {"scale": 2.5}
SHAPES = [(1, 1), (8, 3), (8, 8), (13, 4), (512, 10), (512, 512)]
INF = np.float32(np.inf)


def adversarial(experts: int) -> Array:
    """Rows of ties, equal values, subnormals, wide and narrow spreads, and -inf where a softmax is defined."""
    rng = np.random.default_rng(experts)
    rows = [
        rng.standard_normal(experts),
        np.zeros(experts),
        np.full(experts, -3.5),
        rng.integers(-1, 2, experts),
        rng.standard_normal(experts) * 1e-40,
        rng.standard_normal(experts) * 80,
        np.linspace(-1e30, 1e30, experts),
        np.where(np.arange(experts) % 3 == 0, 1.0, -np.inf),
        np.full(experts, 3e38),
        np.nextafter(np.float32(1), np.float32(2)) * (np.arange(experts) % 2),
    ]
    return np.array(rows, np.float32)


def stable_topk(score: Any, count: int) -> Any:
    """torch's top-k with equal scores by the lower id, which ``torch.topk`` leaves open."""
    return torch.sort(score, dim=-1, descending=True, stable=True).indices[:, :count]


def softmax_weights(rule: str) -> Callable[[Any, int], tuple[Any, Any]]:
    def route(logits: Any, count: int) -> tuple[Any, Any]:
        p = torch.softmax(logits.double(), dim=-1)
        ids = stable_topk(logits, count)
        w = p.gather(1, ids)
        if rule != "none":
            total = w.sum(-1, keepdim=True)
            w = w / (total.clamp(min=6.103515625e-5) if rule == "clamp" else total)
        return ids, w * SCALE["scale"]

    return route


def of_selected(logits: Any, count: int) -> tuple[Any, Any]:
    ids = stable_topk(logits, count)
    return ids, torch.softmax(logits.double().gather(1, ids), dim=-1)


TORCH = {
    SOFTMAX: softmax_weights("clamp"), RAW: softmax_weights("none"), RENORM: softmax_weights("plain"),
    SELECTED: of_selected,
}  # fmt: skip


def every_schedule(subject: Subject, arrays: dict[str, Array]) -> dict[str, Array]:
    """The oracle's outputs, which all variants and thread counts give to the byte."""
    expected = subject.oracle(**arrays)
    for variant in subject.variants:
        for threads in (1, 2, 3, 8):
            status, made = subject.call(arrays, variant, threads)
            assert status == 0
            for name, array in expected.items():
                assert made[name].tobytes() == array.tobytes(), (variant, threads, name)
    return expected


@pytest.mark.parametrize(("experts", "count"), SHAPES)
@pytest.mark.parametrize("map_id", TORCH)
def test_softmax_routers_agree_with_torch(map_id: str, experts: int, count: int) -> None:
    logits = adversarial(experts)
    subject = Subject(map_id, {"E": experts, "K": count}, {} if map_id == SELECTED else SCALE)
    made = every_schedule(subject, {"logits": logits})
    ids, weights = TORCH[map_id](torch.from_numpy(logits), count)
    # The sum over the selected is one chain: its error grows with their number.
    np.testing.assert_allclose(made["weights"], weights.numpy(), rtol=4e-6 + 2.0**-25 * count, atol=1e-37)
    # fp32 probabilities tie where fp64 ones or logits do not: the same weights then belong to the lower id.
    for row in range(len(logits)):
        if map_id == SELECTED or row in (0, 1, 2, 3, 9):
            assert np.array_equal(made["indices"][row], ids[row].numpy()), row
        assert len(set(made["indices"][row])) == count


@pytest.mark.parametrize(
    ("experts", "count", "groups", "keep"), [(12, 3, 3, 2), (12, 3, 4, 2), (512, 8, 8, 4), (8, 8, 1, 1)]
)
@pytest.mark.parametrize("rule", ["none", "clamp", "eps"])
def test_sigmoid_router_agrees_with_torch(rule: str, experts: int, count: int, groups: int, keep: int) -> None:
    logits = adversarial(experts)
    logits[0, : experts // 2] = INF  # defined: the sigmoid is 1
    bias = np.random.default_rng(1).standard_normal(experts).astype(np.float32)
    params = {"n_group": groups, "topk_group": keep, "renormalize": rule, **SCALE}
    subject = Subject(SIGMOID, {"E": experts, "K": count}, params)
    made = every_schedule(subject, {"logits": logits, "correction_bias": bias})
    raw = torch.sigmoid(torch.from_numpy(logits))
    choice = raw + torch.from_numpy(bias)
    if groups > 1:
        by_group = choice.view(len(logits), groups, -1)
        kept = stable_topk(by_group.topk(2, dim=-1).values.sum(-1), keep)
        mask = torch.zeros(len(logits), groups).scatter(1, kept, 1.0).bool()
        choice = by_group.masked_fill(~mask[:, :, None], -torch.inf).view(len(logits), -1)
    ids = stable_topk(choice, count)
    w = raw.double().gather(1, ids)
    if rule == "clamp":
        w = w / w.sum(-1, keepdim=True).clamp(min=6.103515625e-5)
    elif rule == "eps":
        w = w / (w.sum(-1, keepdim=True) + 1e-20)
    np.testing.assert_allclose(made["weights"], w.numpy() * SCALE["scale"], rtol=4e-6, atol=1e-37)
    assert np.array_equal(made["indices"], ids.numpy())


def test_ties_go_to_the_lower_id_in_every_router() -> None:
    logits = np.array([[1, 2, 2, 0, 2, 1]], np.float32)
    for map_id in TORCH:
        made = every_schedule(
            Subject(map_id, {"E": 6, "K": 4}, {} if map_id == SELECTED else SCALE), {"logits": logits}
        )
        assert made["indices"].tolist() == [[1, 2, 4, 0]]


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("map_id", TORCH)
def test_a_softmax_that_is_undefined_is_refused(map_id: str, poison: float) -> None:
    """NaN and +inf anywhere; -inf only where nothing else is left."""
    logits = np.zeros((20, 5), np.float32)
    logits[13, 2 if poison != -np.inf else slice(None)] = poison
    subject = Subject(map_id, {"E": 5, "K": 2}, {} if map_id == SELECTED else SCALE)
    with pytest.raises(RefusedRow) as refused:
        subject.oracle(logits=logits)
    assert refused.value.row == 13
    for variant in subject.variants:
        status, made = subject.call({"logits": logits}, variant, 3)
        assert status == 14
        assert (made["indices"] == -1).all() and np.isnan(made["weights"]).all()


def test_the_routers_are_not_interchangeable() -> None:
    """On one row of logits each pair of routers differs in weights or in selection."""
    logits = np.array([[0.5, 1.5, -0.25, 1.0, 0.75, -2.0]], np.float32)
    made = {}
    for map_id in (SOFTMAX, RAW, SELECTED, SIGMOID):
        params = {} if map_id == SELECTED else SCALE
        if map_id == SIGMOID:
            params = {"n_group": 1, "topk_group": 1, "renormalize": "clamp", **SCALE}
        made[map_id] = Subject(map_id, {"E": 6, "K": 3}, params).oracle(logits=logits)
    texts = {
        map_id: json.dumps({name: array.tolist() for name, array in found.items()}) for map_id, found in made.items()
    }
    assert len(set(texts.values())) == len(texts)


RECORDED = {
    "laguna": (SIGMOID, 1, 1, 2.5), "laguna_elem": (SIGMOID, 1, 1, 2.0), "glm4moe": (SIGMOID, 3, 2, 2.5),
    "deepseek2": (SIGMOID, 4, 2, 2.5), "nemotron_h_moe": (SIGMOID, 1, 1, 2.5), "kimi-k3": (SIGMOID, 1, 1, 2.5),
    "qwen3moe": (SOFTMAX, 0, 0, 1.0), "gpt-oss": (SELECTED, 0, 0, 1.0),
}  # fmt: skip
"""Router, groups, kept groups and scale of each small model (its metadata)."""


@pytest.mark.parametrize("phase", ["prefill", "decode1"])
@pytest.mark.parametrize("name", RECORDED)
def test_routers_pick_and_weigh_as_recorded(name: str, phase: str) -> None:
    """Recorded by llama.cpp from the same logits."""
    data = np.load(DATA / "models" / f"{name}.moe.npz")
    layer = next(iter(json.loads(str(data["formats"])))).partition("/")[0]
    logits, topk = data[f"{phase}/{layer}/logits"], data[f"{phase}/{layer}/topk"]
    map_id, groups, keep, scale = RECORDED[name]
    params: dict[str, Any] = {"scale": scale}
    arrays = {"logits": logits}
    if map_id == SIGMOID:
        params |= {"n_group": groups, "topk_group": keep, "renormalize": "clamp"}
        arrays["correction_bias"] = data[f"weight/{layer}/exp_probs_b.bias"]
    if map_id == SELECTED:
        params = {}
        arrays["router_bias"] = data[f"weight/{layer}/ffn_gate_inp.bias"]
    made = every_schedule(Subject(map_id, {"E": logits.shape[1], "K": topk.shape[1]}, params), arrays)
    assert np.array_equal(made["indices"], topk)
    np.testing.assert_allclose(made["weights"], data[f"{phase}/{layer}/weights"], rtol=2e-6)
