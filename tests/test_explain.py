"""Explanations: the flip of every kind of rejection is the smallest, and selects when it is made true."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import pytest

from kernelmap.errors import KernelmapError
from kernelmap.explain import Flip
from kernelmap.explanation import explain
from kernelmap.models.evidence import Evidence
from kernelmap.models.kernel_map import KernelMap
from kernelmap.models.plan import Decision
from kernelmap.models.policy import Pin, Policy
from kernelmap.policies import make_policy
from kernelmap.registry import make_registry
from kernelmap.vocabulary import Phase, Status
from support import GROUP, WIDTH, World, chain, make_circuit, make_contract, make_host, make_map, registry_of

NAME = "fast"


def world(policy: Policy | None = None, isa: tuple[str, ...] = (), base: bool = True, **fast: Any) -> World:
    """One op, a base provider at priority 100, and ``fast`` at 200, which the case refuses."""
    maps = [make_map(NAME, **{"priority": 200, **fast})]
    if base:
        maps.append(make_map("base", priority=100))
    return World(registry_of(maps), make_circuit(chain([GROUP])), make_host(isa), policy or Policy())


def explained(subject: World, phase: Phase = Phase.PREFILL, name: str = NAME) -> tuple[Decision, Flip]:
    found, _ = explain(
        subject.circuit, subject.inventory, subject.registry, subject.host, subject.policy, "op0",
        phase=phase, why_not=name,
    )  # fmt: skip
    (item,) = found
    return item.decision, item.flips[name]


def provider(subject: World, phase: Phase = Phase.PREFILL) -> str | None:
    """What a fresh resolution selects; None for an error."""
    try:
        plan = subject.plan()
    except KernelmapError:
        return None
    return next(decision.provider for decision in plan.decisions if decision.phase is phase)


def edited(subject: World, name: str = NAME, **changes: Any) -> World:
    """The world with a map changed."""
    item = subject.registry.maps[name]
    selection = {key: changes.pop(key) for key in ("status", "phases", "priority") if key in changes}
    if selection:
        changes["selection"] = item.selection.model_copy(update=selection)
    return replace(subject, registry=subject.registry.with_maps([item.model_copy(update=changes)]))


def apply_flags(subject: World, flip: Flip) -> World:
    """The world with the flags of the flip given on the command line."""
    words = " ".join(change.flag for change in flip.changes).split()
    given = dict.fromkeys(("--route", "--pin"), ())
    for flag, value in zip(words[::2], words[1::2], strict=True):
        given[flag] = (*given[flag], value)
    policy = make_policy(subject.policy, routes=given["--route"], pins=given["--pin"])
    return replace(subject, policy=policy)


def apply(subject: World, kinds: tuple[str, ...], flip: Flip) -> World:
    """The world with the facts of the flip otherwise, by other means than the flip's own code."""
    for kind in kinds:
        if kind in ("route", "priority"):
            change = next(change for change in flip.changes if change.kind == kind)
            subject = apply_flags(subject, Flip(flip.provider, (change,)))
        elif kind == "isa":
            needs = subject.registry.maps[NAME].requires.isa
            subject = replace(subject, host=make_host({*subject.host.isa, *needs}))
        elif kind == "dims":
            subject = edited(subject, constraints=make_map("x").constraints)
        elif kind == "phase":
            subject = edited(subject, phases=(Phase.PREFILL, Phase.DECODE))
        elif kind == "exclude":
            subject = replace(subject, policy=subject.policy.model_copy(update={"exclude": ()}))
        elif kind == "pin":
            subject = replace(subject, policy=subject.policy.model_copy(update={"pin": ()}))
        elif kind == "budget":
            hook = subject.registry.maps[NAME].weight_preparation[0].model_copy(update={"max_total_bytes": 1 << 40})
            subject = edited(subject, weight_preparation=(hook,))
        elif kind == "promote":
            subject = edited(subject, status=Status.PRODUCTION)
        elif kind == "evidence":
            subject = with_evidence(subject, NAME)
        else:
            raise AssertionError(kind)
    return subject


def with_evidence(subject: World, *names: str) -> World:
    """The world with valid evidence for some maps."""
    registry = subject.registry
    proofs = {name: evidence_of(registry.maps[name]) for name in names}
    return replace(
        subject, registry=make_registry(registry.maps.values(), registry.contracts, {**registry.evidence, **proofs})
    )


def evidence_of(item: KernelMap) -> Evidence:
    return Evidence(
        schema_version=1, provider=item.id, contract_digest=make_contract().digest, map_digest=item.proved_digest,
        source_digest="s",
        reference_digest="r", corpus_digest="o", host="h", isa_paths=(), toolchain={}, cases=1, worst_error=0.0,
        seconds=0.0, result="pass",
    )  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A world that refuses ``fast`` in prefill, the codes it is refused with, and the flip that is needed."""

    name: str
    subject: World
    codes: tuple[str, ...]
    kinds: tuple[str, ...]
    text: str


ROUTE = f"--route op0:prefill={NAME}"
PIN = f"--pin op0:prefill={NAME}"
PINNED = Policy(pin=(Pin(op="op0", id="base"),))
EXCLUDED = Policy(exclude=(NAME,))
CASES = [
    Case("route", world(status="candidate"), ("KM401",), ("route",), f"selected with: {ROUTE}"),
    Case("phase", world(phases=("decode",)), ("KM402",), ("phase",), "selected if its map listed prefill"),
    Case("diagnostic", world(status="diagnostic"), ("KM403",), ("promote",), "selected if promoted"),
    Case("deprecated", world(status="deprecated"), ("KM404",), ("promote",), "selected if promoted"),
    Case("isa", edited(world(), requires=make_map("x", isa=("avx2", "fma")).requires), ("KM405",), ("isa",),
         "selected if host had avx2, fma"),
    Case("dims", world(dims={"H": {"multiple_of": 48}}), ("KM407",),
         ("dims",), "selected if H % 48 == 0"),
    Case("budget", world(budget=WIDTH * WIDTH), ("KM408",), ("budget",),
         "selected if its preparation budget held all its layers"),
    Case("exclude", world(EXCLUDED), ("KM411",), ("exclude",), "selected if it were not excluded"),
    Case("pin", world(PINNED), ("KM412",), ("pin",), "selected if base were not pinned"),
    Case("rank", world(priority=50), ("KM413",), ("priority",), f"selected with: {PIN}"),
    Case("route and rank", world(status="candidate", priority=50), ("KM401",), ("route", "priority"),
         f"selected with: {ROUTE} {PIN}"),
    Case("route and isa", edited(world(status="candidate"), requires=make_map("x", isa=("avx2",)).requires),
         ("KM401", "KM405"), ("route", "isa"), "selected if a route allowed it and host had avx2"),
    Case("three", edited(world(status="candidate", phases=("decode",)), requires=make_map("x", isa=("avx2",)).requires),
         ("KM401", "KM402", "KM405"), ("route", "isa", "phase"),
         "selected if a route allowed it and host had avx2 and its map listed prefill"),
    Case("evidence", with_evidence(world(Policy(evidence="require")), "base"), ("KM410",), ("evidence",),
         "selected if it had valid evidence"),
    Case("route and budget", world(status="candidate", budget=0), ("KM401",), ("route", "budget"),
         "selected if a route allowed it and its preparation budget held all its layers"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_flip_says_what_is_needed(case: Case) -> None:
    decision, flip = explained(case.subject)
    (candidate,) = [item for item in decision.candidates if item.id == NAME]
    assert tuple(reason.code for reason in candidate.reasons) == case.codes
    assert tuple(change.kind for change in flip.changes) == case.kinds
    assert flip.text == case.text


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_flip_selects_when_applied_and_nothing_smaller_does(case: Case) -> None:
    _, flip = explained(case.subject)
    assert provider(case.subject) != NAME
    assert provider(apply(case.subject, case.kinds, flip)) == NAME
    for count in range(len(case.kinds)):
        for fewer in combinations(case.kinds, count):
            assert provider(apply(case.subject, fewer, flip)) != NAME


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_flags_alone_select_where_the_text_says_so(case: Case) -> None:
    _, flip = explained(case.subject)
    assert flip.text.startswith("selected with: ") == all(change.flag for change in flip.changes)
    if flip.text.startswith("selected with: "):
        assert provider(apply_flags(case.subject, flip)) == NAME


def test_an_unrouted_candidate() -> None:
    subject = world(status="candidate")
    decision, flip = explained(subject)
    (candidate,) = [item for item in decision.candidates if item.id == NAME]
    assert [reason.message for reason in candidate.reasons] == ["no route allows it"]
    assert candidate.reasons[0].facts == {"status": "candidate"}
    assert decision.provider == "base"
    assert flip.text == f"selected with: {ROUTE}"
    assert explained(subject, Phase.DECODE)[1].text == f"selected with: --route op0:decode={NAME}"
    routed = apply_flags(subject, flip)
    assert provider(routed) == NAME
    assert provider(routed, Phase.DECODE) == "base", "a route for one phase leaves the other alone"


def test_a_hole_is_explained_too() -> None:
    subject = world(status="candidate", base=False)
    assert provider(subject) is None
    decision, flip = explained(subject)
    assert decision.provider is None
    assert flip.text == f"selected with: {ROUTE}"


def test_the_budget_of_another_provider_counts_all_that_it_would_serve() -> None:
    """``top`` could prepare one op's weights but not both ops', so it serves none and is not in the way."""
    maps = [
        make_map("base", priority=100),
        make_map(NAME, priority=200, status="candidate"),
        make_map("top", priority=300, budget=2 * WIDTH * WIDTH),
    ]
    subject = World(registry_of(maps), make_circuit(chain([GROUP, GROUP]), layers=2), make_host())
    assert provider(subject) == "base"
    _, flip = explained(subject)
    assert flip.text == f"selected with: {ROUTE}"
    assert provider(apply_flags(subject, flip)) == NAME


def test_a_pinned_provider_may_stand_in_front_of_a_higher_one() -> None:
    subject = world(PINNED, priority=50)
    subject = replace(subject, registry=subject.registry.with_maps([make_map("top", priority=300)]))
    _, flip = explained(subject)
    assert flip.text == "selected if it were pinned instead of base"
    assert provider(replace(subject, policy=Policy(pin=(Pin(op="op0", id=NAME),)))) == NAME


def test_however_many_facts_are_wrong_all_are_named() -> None:
    subject = world(Policy(exclude=(NAME,)), status="diagnostic", phases=("decode",), dims={"H": {"min": 1024}})
    subject = edited(subject, requires=make_map("x", isa=("avx2",)).requires)
    decision, flip = explained(subject)
    (candidate,) = [item for item in decision.candidates if item.id == NAME]
    assert [reason.code for reason in candidate.reasons] == ["KM403", "KM402", "KM405", "KM407", "KM411"]
    kinds = tuple(change.kind for change in flip.changes)
    assert kinds == ("exclude", "isa", "dims", "phase", "promote")
    assert provider(apply(subject, kinds, flip)) == NAME
    assert all(provider(apply(subject, tuple(k for k in kinds if k != one), flip)) != NAME for one in kinds)


def test_no_flip_is_claimed_where_none_is_found() -> None:
    """A tie cannot come from files, and no fact about the provider alone undoes it."""
    subject = edited(world(), priority=100)
    _, flip = explained(subject)
    assert flip.changes == ()
    assert flip.text == "no change of these facts would select it"


def test_every_provider_that_was_not_selected_has_a_flip() -> None:
    found, resolution = explain(*_parts(world(status="candidate")), "op0")
    assert [item.decision.phase for item in found] == [Phase.PREFILL, Phase.DECODE]
    assert all(set(item.flips) == {NAME} for item in found)
    assert resolution.problems == ()


def _parts(subject: World) -> tuple[Any, ...]:
    return subject.circuit, subject.inventory, subject.registry, subject.host, subject.policy


@pytest.mark.parametrize(
    ("arguments", "code", "says", "near"),
    [
        ({"op": "op00"}, "KM458", "no op 'op00'", ("op0",)),
        ({"layer": 7}, "KM458", "no op0 in layer 7", ()),
        ({"phase": Phase.INIT}, "KM458", "in init", ()),
        ({"why_not": "fats"}, "KM457", "no provider is called 'fats'", ("fast",)),
        ({"why_not": "stranger"}, "KM459", "stranger belongs to another group: toy_other", ()),
    ],
    ids=str,
)
def test_names_that_do_not_exist(arguments: dict[str, Any], code: str, says: str, near: tuple[str, ...]) -> None:
    maps = [make_map("base"), make_map(NAME, priority=200), make_map("stranger", "toy_other")]
    subject = World(registry_of(maps), make_circuit(chain([GROUP])), make_host())
    with pytest.raises(KernelmapError) as caught:
        explain(*_parts(subject), **{"op": "op0", **arguments})
    (item,) = caught.value.diagnostics
    assert item.code == code
    assert says in item.message
    assert item.near[: len(near)] == near
