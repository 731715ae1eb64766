"""The oracles themselves: against fp64, ggml's recorded dot products, and small cases worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from calling import DATA, SIGMOID, SOFTMAX, Subject

from kernelmap_providers import formats
from kernelmap_providers.reference.dots import dot
from kernelmap_providers.reference.elementary import exp32, sigmoid, sum_lanes, swiglu
from kernelmap_providers.reference.refusal import RefusedRow

GOLDEN = np.load(DATA / "golden" / "blocks.npz")
WEIGHTS = ("q4_k", "q5_k", "q6_k", "q8_0", "q5_1", "mxfp4")


def every_float(step: int) -> np.ndarray:
    """fp32 values spread over all bit patterns, NaN and infinities among them."""
    return np.arange(0, 2**32, step, dtype=np.uint64).astype(np.uint32).view(np.float32)


def test_exp_is_within_one_ulp_over_the_whole_range() -> None:
    x = every_float(4099)
    x = np.concatenate([x[(x > -104) & (x < 88.72)], np.linspace(-104, 88.72, 400_001).astype(np.float32)])
    exact = np.exp(x.astype(np.float64))
    ulp = np.maximum(np.exp2(np.floor(np.log2(exact)) - 23), 2.0**-149)
    assert (np.abs(exp32(x) - exact) / ulp).max() < 1.0


def test_exp_limits() -> None:
    x = np.array([-np.inf, -200, -103.98, np.inf, 200, 88.73, 0.0, -0.0], np.float32)
    assert exp32(x).tolist() == [0, 0, 0, np.inf, np.inf, np.inf, 1, 1]
    assert np.isnan(exp32(np.array([np.nan], np.float32)))[0]
    assert exp32(np.array([-103.9], np.float32))[0] == np.float32(2.0**-149)
    assert exp32(every_float(65521)).dtype == np.float32


def test_swiglu_and_sigmoid_have_no_trap() -> None:
    big = np.array([-300.0, -88.0, 0.0, 88.0, 300.0], np.float32)
    one = np.ones_like(big)
    assert sigmoid(big).tolist() == pytest.approx([0, 6.05e-39, 0.5, 1, 1], abs=1e-38)
    assert swiglu(big, one)[[0, 2, 4]].tolist() == [0, 0, 300]


def test_lane_order_is_the_stated_one() -> None:
    """A sum whose result depends on the order, worked out lane by lane."""
    values = (np.random.default_rng(0).standard_normal(21) * 10.0 ** np.arange(21)).astype(np.float32)
    lanes = [np.float32(0)] * 8
    for k, value in enumerate(values):
        lanes[k % 8] += value
    a = lanes
    assert sum_lanes(values) == ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]))


@pytest.mark.parametrize("name", WEIGHTS)
def test_dots_agree_with_ggml(name: str) -> None:
    """|y - ref| <= 1e-5 * sum |w x|, the bound of the contract; ggml's own forms differ as much among themselves."""
    key = name.upper()
    act_format = str(GOLDEN[f"dot_type_{key}"]).lower()
    acts = GOLDEN[f"act_{act_format.upper()}"]
    made = np.stack([dot(name, GOLDEN[f"q_{key}"], act) for act in acts])
    size = np.abs(formats.decode(act_format, acts)) @ np.abs(GOLDEN[f"dq_{key}"]).T
    fine = np.isfinite(size)
    assert fine.sum() >= size.size - 24
    recorded = GOLDEN[f"dot_{key}"]
    fine &= np.isfinite(recorded)  # q8_1's fp16 sum overflows on the huge row: an input error for us
    assert (np.abs(made - recorded)[fine] <= 1e-5 * size[fine]).all()


def test_softmax_router_by_hand() -> None:
    logits = np.log(np.array([[1, 4, 2, 1, 4]], np.float32))
    made = Subject(SOFTMAX, {"E": 5, "K": 3}, {"scale": 2.0}).oracle(logits=logits)
    assert made["indices"].tolist() == [[1, 4, 2]]
    np.testing.assert_allclose(made["weights"], [[0.8, 0.8, 0.4]], rtol=1e-6)


def test_softmax_router_clamps_a_vanishing_sum_from_below() -> None:
    """One expert of very many equal ones: p = 1e-5 is below 2**-14."""
    made = Subject(SOFTMAX, {"E": 32768, "K": 1}, {"scale": 1.0}).oracle(logits=np.zeros((1, 32768), np.float32))
    assert made["indices"].tolist() == [[0]]
    assert made["weights"][0, 0] == pytest.approx(2.0**-15 / 2.0**-14)


def sigmoid_subject(rule: str, groups: int = 2, keep: int = 1, scale: float = 1.0) -> Subject:
    params = {"n_group": groups, "topk_group": keep, "renormalize": rule, "scale": scale}
    return Subject(SIGMOID, {"E": 6, "K": 2}, params)


def test_the_bias_selects_and_the_raw_scores_weigh() -> None:
    raw = np.array([0.9, 0.1, 0.2, 0.5, 0.6, 0.05])
    logits = np.log(raw / (1 - raw)).astype(np.float32)[None]
    bias = np.array([0, 0, 0, 0.3, 0, 0.9], np.float32)
    made = sigmoid_subject("none").oracle(logits=logits, correction_bias=bias)
    assert made["indices"].tolist() == [[5, 3]]  # group 1 wins by 0.95 + 0.8; expert 0 is not in it
    np.testing.assert_allclose(made["weights"], [[0.05, 0.5]], rtol=1e-5)
    plain = sigmoid_subject("clamp", groups=1, scale=3.0).oracle(logits=logits)
    assert plain["indices"].tolist() == [[0, 4]]
    np.testing.assert_allclose(plain["weights"], [[3 * 0.6, 3 * 0.4]], rtol=1e-5)


def test_sigmoid_renormalization_rules_differ_where_the_sum_vanishes() -> None:
    logits = np.full((1, 6), -40, np.float32)
    score = float(sigmoid(np.float32([-40.0]))[0])
    by_rule = {rule: sigmoid_subject(rule).oracle(logits=logits)["weights"][0, 0] for rule in ("none", "clamp", "eps")}
    assert by_rule["none"] == pytest.approx(score)
    assert by_rule["clamp"] == pytest.approx(score / 2.0**-14)
    assert by_rule["eps"] == pytest.approx(0.5, rel=1e-2)


def test_equal_scores_go_to_the_lower_id() -> None:
    made = sigmoid_subject("none", groups=3, keep=2).oracle(logits=np.zeros((1, 6), np.float32))
    assert made["indices"].tolist() == [[0, 1]]


def test_routers_refuse_nan_and_the_softmax_an_infinite_largest_logit() -> None:
    softmax, sigmoid = Subject(SOFTMAX, {"E": 6, "K": 2}, {"scale": 1.0}), sigmoid_subject("none")
    for poison, subjects in ((np.nan, (softmax, sigmoid)), (np.inf, (softmax,))):
        logits = np.zeros((3, 6), np.float32)
        logits[1, 4] = poison
        for subject in subjects:
            with pytest.raises(RefusedRow) as refused:
                subject.oracle(logits=logits)
            assert refused.value.row == 1
