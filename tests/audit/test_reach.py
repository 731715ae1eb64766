"""Which variants run: against trying every value of every dim."""

from __future__ import annotations

from itertools import product
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from sandbox import kernel_map

from kernelmap.models.kernel_map import KernelMap
from kernelmap.reach import reached

bounds = st.dictionaries(st.sampled_from(["A_min", "A_max", "B_min", "B_max"]), st.integers(0, 6), max_size=3)
needs = st.lists(st.sampled_from(["avx2", "fma"]), unique=True, max_size=1)
spans = st.tuples(st.integers(0, 5), st.integers(0, 5)).map(lambda pair: (min(pair), max(pair)))


def made(guards: list[tuple[dict[str, int], list[str]]]) -> KernelMap:
    listed: list[dict[str, Any]] = [
        {"name": f"v{i}", "shape_constraints": g, "requires": n, "fallback": "base"} for i, (g, n) in enumerate(guards)
    ]
    value = kernel_map("x", 1)
    value["impl"]["variants"] = [*listed, {"name": "base"}]
    import json

    return KernelMap.model_validate_json(json.dumps(value))


@given(st.lists(st.tuples(bounds, needs), max_size=4), spans, spans, st.booleans())
def test_reached_is_what_some_values_run(
    guards: list[tuple[dict[str, int], list[str]]], a: tuple[int, int], b: tuple[int, int], avx2: bool
) -> None:
    item = made(guards)
    features = frozenset({"avx2"} if avx2 else set())
    wanted = set()
    for x, y in product(range(a[0], a[1] + 1), range(b[0], b[1] + 1)):
        able = (v for v in item.impl.variants if set(v.requires) <= features and v.admits({"A": x, "B": y}))
        wanted.add(next(able).name)
    assert reached(item, {"A": a, "B": b}, features) == wanted
