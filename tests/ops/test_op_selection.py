"""Choosing a provider outside of a circuit: the resolver's checks and records, once per request, fail-closed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from mxfp4_cases import PROVIDERS, chooser, make, run

from kernelmap.host import probe_host
from kernelmap.models.policy import Pin, Policy
from kernelmap.ops.mxfp4 import GROUP
from kernelmap.ops.selection import Chooser, NoProviderError, Request
from kernelmap.registry import Registry, load_registry
from kernelmap.vocabulary import Phase

NUMBA, TORCH = PROVIDERS


@pytest.fixture(scope="module")
def registry() -> Registry:
    return load_registry()


def request(device: str = "cpu", dtype: str = "fp32", phase: Phase = Phase.PREFILL) -> Request:
    ports = {
        "latent_tokens": dtype, "selected_experts": "i64", "mixture_weights": dtype, "shared_output": dtype,
        "packed_weights": "u8", "scale_bytes": "u8", "output": dtype,
    }  # fmt: skip
    return Request(GROUP, phase, device, tuple(ports.items()), (("S", 2), ("E", 4), ("N", 8), ("G", 1)))


@pytest.mark.parametrize("dtype", ["fp64", "fp32", "fp16", "bf16"])
@pytest.mark.parametrize(("device", "provider"), [("cpu", NUMBA), ("cuda", TORCH), ("mps", TORCH)])
@pytest.mark.parametrize("phase", [Phase.PREFILL, Phase.DECODE])
def test_device_and_dtype_choose(registry: Registry, device: str, dtype: str, provider: str, phase: Phase) -> None:
    bound = Chooser(registry, probe_host()).bound(request(device, dtype, phase))
    assert bound.map.id == provider and bound.decision.phase is phase
    assert bound.instance.shared.dtypes["output"] == dtype
    refused = {candidate.id: [r.code for r in candidate.reasons] for candidate in bound.decision.candidates}
    assert refused == {NUMBA: [] if device == "cpu" else ["KM406"], TORCH: [] if device != "cpu" else ["KM413"]}


def test_nothing_eligible_is_an_error_with_the_record(registry: Registry) -> None:
    only_cpu = registry.without([TORCH])
    with pytest.raises(NoProviderError) as caught:
        Chooser(only_cpu, probe_host()).bound(request("cuda"))
    (problem,) = caught.value.diagnostics
    assert problem.code == "KM450" and problem.place is None
    assert f"{NUMBA}: KM406 host has no cpu" in problem.help
    (candidate,) = caught.value.decision.candidates
    assert caught.value.decision.provider is None and candidate.id == NUMBA
    none = registry.without(PROVIDERS)
    with pytest.raises(NoProviderError, match="no provider of mxfp4_interleaved"):
        Chooser(none, probe_host()).bound(request())


def test_another_group_of_the_same_kind_is_never_taken(registry: Registry) -> None:
    """A provider that computes something else, of far higher priority, stays out of the ladder."""
    stranger = registry.maps[NUMBA]
    selection = stranger.selection.model_copy(
        update={"equivalence_group": "toy_other_experts", "priority": 900_000, "phases": tuple(Phase)}
    )
    other = stranger.model_copy(update={"id": "toy_other", "selection": selection})
    widened = registry.with_maps([other])
    assert Chooser(widened, probe_host()).bound(request()).map.id == NUMBA
    with pytest.raises(NoProviderError):
        Chooser(widened.without(PROVIDERS), probe_host()).bound(request())


def test_a_policy_is_obeyed(registry: Registry) -> None:
    pinned = Policy(pin=(Pin(op="mxfp4_expert_linear", id=TORCH),))
    assert Chooser(registry, probe_host(), pinned).bound(request()).map.id == TORCH
    both = Policy(exclude=PROVIDERS)
    with pytest.raises(NoProviderError, match="KM450"):
        Chooser(registry, probe_host(), both).bound(request())


def test_one_choice_a_request(registry: Registry) -> None:
    mine = Chooser(registry, probe_host())
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(mine.bound, [request()] * 8))
    assert len({id(bound) for bound in found}) == 1 and len(mine.decisions) == 1
    mine.bound(replace(request(), dims=(("S", 3), ("E", 4), ("N", 8), ("G", 1))))
    assert len(mine.decisions) == 2


def test_token_count_is_no_part_of_a_request() -> None:
    mine = chooser(NUMBA)
    run(NUMBA, make(tokens=5))
    made = len(mine.decisions)
    run(NUMBA, make(tokens=11))
    assert len(mine.decisions) == made
