"""Arena planning: live buffers never overlap, alignments hold, guards stay free."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelmap.planner import GUARD_BYTES, Request, plan_arena

REQUESTS = st.lists(
    st.tuples(st.integers(0, 5000), st.sampled_from([1, 4, 64, 4096]), st.integers(0, 20), st.integers(0, 8)),
    max_size=40,
).map(
    lambda rows: [
        Request(f"b{i}", size, align, first, first + length) for i, (size, align, first, length) in enumerate(rows)
    ]
)


@given(REQUESTS)
def test_buffers_that_live_together_lie_apart(requests: list[Request]) -> None:
    layout = plan_arena(requests)
    for request in requests:
        offset = layout.offsets[request.key]
        assert offset % request.alignment == 0 and layout.alignment % request.alignment == 0
        assert offset + request.size + GUARD_BYTES <= layout.size
    for index, a in enumerate(requests):
        for b in requests[index + 1 :]:
            if a.first <= b.last and b.first <= a.last:
                low, high = sorted((a, b), key=lambda r: layout.offsets[r.key])
                assert layout.offsets[low.key] + low.size + GUARD_BYTES <= layout.offsets[high.key]


@given(REQUESTS)
def test_the_arena_is_no_larger_than_all_buffers_side_by_side(requests: list[Request]) -> None:
    layout = plan_arena(requests)
    assert layout.size <= sum(r.size + GUARD_BYTES + r.alignment for r in requests)


@given(REQUESTS, st.randoms())
def test_the_order_of_requests_changes_nothing(requests: list[Request], random: object) -> None:
    shuffled = list(requests)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert plan_arena(shuffled) == plan_arena(requests)


def test_memory_is_used_again() -> None:
    chain = [Request(f"s{i}", 1000, 64, i, i) for i in range(50)]
    assert plan_arena(chain).size <= 2 * (1000 + GUARD_BYTES + 64)


def test_two_buffers_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two buffers"):
        plan_arena([Request("a", 1, 1, 0, 0), Request("a", 1, 1, 1, 1)])


def test_no_buffers() -> None:
    assert plan_arena([]).size == 0
