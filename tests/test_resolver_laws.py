"""Laws of the resolver, over random registries, circuits, hosts and policies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from kernelmap.checks import Question, reasons
from kernelmap.circuit.elaborate import elaborate
from kernelmap.errors import KernelmapError
from kernelmap.models.kernel_map import KernelMap
from kernelmap.models.loading import validate
from kernelmap.models.plan import Plan
from kernelmap.models.policy import Pin, Policy, PolicyRoute
from kernelmap.registry import load_registry, make_registry
from kernelmap.resolver import Resolution, decide, rules_of
from kernelmap.vocabulary import Status
from support import (
    World,
    chain,
    circuit_value,
    contract_value,
    group_name,
    make_circuit,
    make_host,
    make_map,
    map_value,
    registry_of,
    source_of,
    write_json,
    write_registry,
)

FEATURES = ("avx2", "avx512f", "avx512vnni", "fma")
LAYERS = 2
laws = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
statuses = st.sampled_from(["production", "production", "production", "candidate", "diagnostic", "deprecated"])
some_phases = st.sampled_from([("prefill", "decode"), ("prefill", "decode"), ("prefill",), ("decode",)])
features = st.sets(st.sampled_from(FEATURES))
SWITCHED = (
    {"name": "parallel", "requires": ["avx2"], "fallback": "serial", "kill_switch": "TOY_DISABLE_PARALLEL"},
    {"name": "serial"},
)


@st.composite
def ladders(draw: st.DrawFn, group: int) -> list[dict]:
    """Map values of one group, with distinct priorities."""
    priorities = draw(st.lists(st.integers(0, 50), min_size=0, max_size=5, unique=True))
    return [
        map_value(
            f"map_{group}_{index}",
            group_name(group),
            priority=priority,
            status=draw(statuses),
            phases=draw(some_phases),
            isa=sorted(draw(st.sets(st.sampled_from(FEATURES), max_size=1))),
            dims=draw(st.sampled_from([None, None, {"H": {"min": 32}}, {"H": {"multiple_of": 48}}])),
            budget=draw(st.sampled_from([None, None, 4096, 8192, 16384, 1 << 30])),
            variants=draw(st.sampled_from([({"name": "serial"},), SWITCHED])),
        )
        for index, priority in enumerate(priorities)
    ]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """A random world; often, but not always, it resolves."""
    groups = draw(st.integers(1, 3))
    values = [value for group in range(groups) for value in draw(ladders(group))]
    if draw(st.booleans()):  # a floor under every group makes a plan likely
        values += [map_value(f"floor_{g}", group_name(g), priority=60 if draw(st.booleans()) else 51 + g)
                   for g in range(groups)]  # fmt: skip
    ops = draw(st.lists(st.integers(0, groups - 1), min_size=1, max_size=4))
    names = [value["id"] for value in values]
    routes = []
    exclude: list[str] = []
    if names:
        phase = st.sampled_from([None, "prefill", "decode"])
        op = st.sampled_from([f"op{index}" for index in range(len(ops))])
        routes = [
            PolicyRoute.model_validate_json(json.dumps({"op": o, "phase": p, "allow": n}))
            for o, p, n in draw(st.lists(st.tuples(op, phase, st.sampled_from(names)), max_size=4))
        ]
        exclude = draw(st.lists(st.sampled_from(names), max_size=1))
    switches = draw(st.sampled_from([(), ("TOY_DISABLE_PARALLEL",)]))
    registry = registry_of(
        [validate(source_of(value), KernelMap) for value in values], [group_name(g) for g in range(groups)]
    )
    return World(
        registry,
        make_circuit(chain([group_name(g) for g in ops]), layers=LAYERS),
        make_host(draw(features)),
        Policy(routes=tuple(routes), exclude=tuple(exclude), kill_switches=switches),
    )


def resolution(world: World) -> Resolution:
    """Every decision record, whether or not there is a plan."""
    circuit, policy = world.circuit, world.policy.normalised()
    elaborated = elaborate(circuit.circuit, circuit.source, world.inventory, world.registry.contracts)
    return decide(elaborated, circuit.source, world.registry, world.host, policy)


def plan_or_none(world: World) -> Plan | None:
    """The plan, or None where there is an error."""
    try:
        return world.plan()
    except KernelmapError:
        return None


def chosen(plan: Plan) -> dict[str, str | None]:
    """Decision key to provider."""
    return {decision.key: decision.provider for decision in plan.decisions}


@laws
@given(worlds())
def test_never_another_group(world: World) -> None:
    for decision in resolution(world).decisions:
        for candidate in decision.candidates:
            assert world.registry.maps[candidate.id].selection.equivalence_group == decision.group
        if decision.provider is not None:
            assert decision.provider in {candidate.id for candidate in decision.candidates}


@laws
@given(worlds())
def test_every_map_of_the_group_is_in_the_record_once_with_a_reason_unless_selected(world: World) -> None:
    for decision in resolution(world).decisions:
        ladder = [item.id for item in world.registry.ladders.get(decision.group, ())]
        assert [candidate.id for candidate in decision.candidates] == ladder
        for candidate in decision.candidates:
            assert candidate.selected == (candidate.id == decision.provider)
            assert bool(candidate.reasons) != candidate.selected
        assert sum(candidate.selected for candidate in decision.candidates) == (decision.provider is not None)


@laws
@given(worlds())
def test_the_reasons_are_those_of_the_checks_asked_about_this_very_op(world: World) -> None:
    """Ops that ask the same share a ladder; nothing in it may come from another op."""
    record = resolution(world)
    rules, features = rules_of(record.elaborated.circuit, world.policy.normalised()), frozenset(world.host.isa)
    for case, decision in zip(record.cases, record.decisions, strict=True):
        question = Question(case.shared, case.phase, world.host, features, rules, world.registry.evidence)
        for candidate in decision.candidates:
            found = [reason for reason in candidate.reasons if reason.check not in ("rank", "budget")]
            assert found == reasons(world.registry.maps[candidate.id], question)


@laws
@given(worlds())
def test_the_highest_eligible_provider_serves(world: World) -> None:
    for decision in resolution(world).decisions:
        eligible = [candidate for candidate in decision.candidates if candidate.eligible]
        assert [candidate.id for candidate in eligible][:1] == [decision.provider][: len(eligible)]


@laws
@given(worlds())
def test_status_decides_who_may_compete(world: World) -> None:
    """Never a candidate without a route; never a diagnostic or deprecated provider, routed or not."""
    for decision in resolution(world).decisions:
        for candidate in decision.candidates:
            routed = any(
                route.op == decision.name and route.allow == candidate.id and route.phase in (None, decision.phase)
                for route in world.policy.routes
            )
            codes = {reason.code for reason in candidate.reasons}
            if candidate.status is Status.CANDIDATE:
                assert ("KM401" in codes) == (not routed)
            if candidate.status in (Status.DIAGNOSTIC, Status.DEPRECATED):
                assert not candidate.selected
                assert codes & {"KM403", "KM404"}


@laws
@given(worlds(), st.data())
def test_a_removed_provider_never_changes_another_op(world: World, data: st.DataObject) -> None:
    assume(world.registry.maps)
    gone = data.draw(st.sampled_from(sorted(world.registry.maps)))
    before = resolution(replace(world, policy=Policy()))
    after = resolution(replace(world, registry=world.registry.without([gone]), policy=Policy()))
    group = world.registry.maps[gone].selection.equivalence_group
    for old, new in zip(before.decisions, after.decisions, strict=True):
        if old.group != group:
            assert old == new
        elif old.provider != gone:
            assert old.provider == new.provider, "a provider that was not selected is of no consequence"


@laws
@given(worlds(), st.data())
def test_a_removed_provider_never_changes_who_else_is_eligible(world: World, data: st.DataObject) -> None:
    """Also with preparation budgets: what a map may prepare does not hang on what another one took."""
    assume(world.registry.maps)
    gone = data.draw(st.sampled_from(sorted(world.registry.maps)))
    world = replace(world, policy=Policy())
    after = resolution(replace(world, registry=world.registry.without([gone])))
    for old, new in zip(resolution(world).decisions, after.decisions, strict=True):
        eligible = {candidate.id for candidate in old.candidates if candidate.eligible} - {gone}
        assert eligible == {candidate.id for candidate in new.candidates if candidate.eligible}


@laws
@given(worlds(), features)
def test_more_features_never_make_an_op_unresolvable(world: World, more: set[str]) -> None:
    richer = replace(world, host=make_host({*world.host.isa, *more}))
    for old, new in zip(resolution(world).decisions, resolution(richer).decisions, strict=True):
        assert new.provider is not None or old.provider is None


@laws
@given(worlds(), st.randoms(use_true_random=False))
def test_the_order_of_maps_is_irrelevant(world: World, random) -> None:
    maps = list(world.registry.maps.values())
    random.shuffle(maps)
    contracts = list(world.registry.contracts.items())
    random.shuffle(contracts)
    shuffled = replace(world, registry=make_registry(maps, dict(contracts)))
    one, other = plan_or_none(world), plan_or_none(shuffled)
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert one.digest == other.digest
        assert one == other


@laws
@given(worlds(), st.randoms(use_true_random=False))
def test_the_order_of_the_policy_is_irrelevant(world: World, random) -> None:
    routes = list(world.policy.routes) * 2
    random.shuffle(routes)
    policy = world.policy.model_copy(update={"routes": tuple(routes)})
    one, other = plan_or_none(world), plan_or_none(replace(world, policy=policy))
    assert (one and one.digest) == (other and other.digest)


@laws
@given(worlds())
def test_a_hole_is_an_error_and_there_is_no_partial_plan(world: World) -> None:
    record = resolution(world)
    holes = [decision for decision in record.decisions if decision.provider is None]
    if not holes:
        assert all(decision.provider for decision in world.plan().decisions)
        return
    with pytest.raises(KernelmapError) as caught:
        world.plan()
    problems = [item for item in caught.value.diagnostics if item.code == "KM450"]
    assert len(problems) == len(holes), "every op that failed is reported, not the first"
    for decision, problem in zip(holes, problems, strict=True):
        assert problem.place is not None
        assert problem.place.pointer == decision.where
        assert all(candidate.id in problem.help for candidate in decision.candidates)


@laws
@given(worlds(), st.data())
def test_a_tie_is_always_an_error(world: World, data: st.DataObject) -> None:
    """Loading refuses ties; a registry made in code may have them, and then nothing is decided."""
    plan = plan_or_none(world)
    assume(plan is not None)
    assert plan is not None
    decision = data.draw(st.sampled_from(plan.decisions))
    winner = world.registry.maps[str(decision.provider)]
    twin = make_map(
        "twin", winner.selection.equivalence_group, priority=winner.selection.priority, phases=(decision.phase.value,)
    )
    tied = replace(world, registry=world.registry.with_maps([twin]))
    with pytest.raises(KernelmapError) as caught:
        tied.plan()
    ties = [item for item in caught.value.diagnostics if item.code == "KM452"]
    assert ties
    assert all("twin" in item.message and winner.id in item.message for item in ties)


@laws
@given(worlds(), st.data())
def test_a_pin_is_this_provider_or_an_error(world: World, data: st.DataObject) -> None:
    assume(world.registry.maps)
    name = data.draw(st.sampled_from(sorted(world.registry.maps)))
    unpinned = resolution(world)
    pinned = replace(world, policy=world.policy.model_copy(update={"pin": (Pin(op="op0", id=name),)}))
    record = resolution(pinned)
    for old, new in zip(unpinned.decisions, record.decisions, strict=True):
        if new.name != "op0":
            assert old.provider == new.provider or _shares_budget(world, old.group)
            continue
        assert new.provider in (name, None)
        if new.provider is None:
            assert any(item.code == "KM455" for item in record.problems)
    if record.problems:
        assert plan_or_none(pinned) is None


def _shares_budget(world: World, group: str) -> bool:
    """Whether a map of the group prepares weights: a pin then changes how much it would have to hold."""
    return any(item.weight_preparation for item in world.registry.ladders.get(group, ()))


@laws
@given(worlds(), st.data())
def test_an_excluded_provider_is_never_selected(world: World, data: st.DataObject) -> None:
    assume(world.registry.maps)
    name = data.draw(st.sampled_from(sorted(world.registry.maps)))
    policy = world.policy.model_copy(update={"exclude": (*world.policy.exclude, name)})
    for decision in resolution(replace(world, policy=policy)).decisions:
        assert decision.provider != name
        for candidate in decision.candidates:
            if candidate.id == name:
                assert "KM411" in {reason.code for reason in candidate.reasons}


@laws
@given(worlds())
def test_budgets_hold_all_layers_or_none(world: World) -> None:
    """A map with a hook passes for all ops of its group that it could serve, or for none."""
    record = resolution(world)
    for item in world.registry.maps.values():
        if not item.weight_preparation:
            continue
        fits: set[bool] = set()
        tensors: set[str] = set()
        for case, decision in zip(record.cases, record.decisions, strict=True):
            mine = [candidate for candidate in decision.candidates if candidate.id == item.id]
            if mine and all(reason.check in ("rank", "budget") for reason in mine[0].reasons):
                fits.add(mine[0].eligible)
                tensors |= {weight.tensor.name for op in case.instances for weight in op.weights.values()}
        assert len(fits) <= 1
        if fits:
            need = len(tensors) * 64 * 64  # each tensor once, however many phases read it
            assert fits == {need <= item.weight_preparation[0].max_total_bytes}


@laws
@given(worlds())
def test_kill_switches_disable_variants_and_change_no_provider(world: World) -> None:
    on = resolution(replace(world, policy=world.policy.model_copy(update={"kill_switches": ("TOY_DISABLE_PARALLEL",)})))
    off = resolution(replace(world, policy=world.policy.model_copy(update={"kill_switches": ()})))
    for old, new in zip(off.decisions, on.decisions, strict=True):
        assert old.provider == new.provider
        assert old.candidates == new.candidates
        for variant in new.variants:
            assert variant.enabled == (variant.kill_switch is None)
        assert [variant.name for variant in old.variants] == [variant.name for variant in new.variants]


def test_the_order_of_files_and_folders_is_irrelevant(tmp_path: Path) -> None:
    contracts = [contract_value(group_name(0)), contract_value(group_name(1))]
    maps = [map_value(f"map_{g}_{i}", group_name(g), priority=i) for g in range(2) for i in range(4)]
    one = write_registry(tmp_path / "one", maps, contracts)
    first = write_registry(tmp_path / "first", maps[::2], contracts[:1])
    second = write_registry(tmp_path / "second", maps[1::2][::-1], contracts[1:])
    circuit, host = make_circuit(chain([group_name(0), group_name(1)])), make_host()
    plans = [
        World(load_registry(folders, shipped=False), circuit, host).plan()
        for folders in ([one], [first, second], [second, first])
    ]
    assert len({plan.digest for plan in plans}) == 1
    assert len({plan.canonical() for plan in plans}) == 1


_PRINT_DIGEST = """
import sys
from pathlib import Path
from kernelmap.circuit.loading import read_circuit
from kernelmap.circuit.storage import reference_inventory
from kernelmap.host import load_host
from kernelmap.models.policy import Policy
from kernelmap.registry import load_registry
from kernelmap.resolver import resolve
registry = load_registry([Path(sys.argv[1])], shipped=False)
item = read_circuit(sys.argv[2])
inventory = reference_inventory(item.circuit, item.source)
policy = Policy(exclude=("map_0_3", "map_1_2", "map_1_3"), kill_switches=("B_SWITCH", "A_SWITCH"))
plan = resolve(item.circuit, item.source, inventory, registry, load_host(sys.argv[3]), policy)
print(plan.digest)
assert not {name for name in sys.modules if name.startswith("kernelmap_providers")}, "a kernel was imported"
"""


def test_the_digest_is_the_same_under_any_hash_seed(tmp_path: Path) -> None:
    contracts = [contract_value(group_name(0)), contract_value(group_name(1))]
    maps = [
        map_value(f"map_{g}_{i}", group_name(g), priority=i, isa=list(FEATURES[:i]), budget=1 << 30, variants=SWITCHED)
        for g in range(2)
        for i in range(4)
    ]
    folder = write_registry(tmp_path / "maps", maps, contracts)
    circuit = write_json(tmp_path / "toy_circuit.json", circuit_value(chain([group_name(0), group_name(1)])))
    host = tmp_path / "host.json"
    host.write_text(make_host(FEATURES).model_dump_json(by_alias=True, exclude_none=True), encoding="utf-8")
    digests = set()
    for seed in ("0", "1"):
        found = subprocess.run(
            [sys.executable, "-c", _PRINT_DIGEST, str(folder), str(circuit), str(host)],
            env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert found.returncode == 0, found.stderr
        digests.add(found.stdout.strip())
    assert len(digests) == 1
    assert next(iter(digests)).startswith("sha256:")
