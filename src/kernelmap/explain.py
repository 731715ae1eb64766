"""Explanations: the smallest change that would select a rejected provider, found by re-running the checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import combinations, product

from kernelmap.budget import Served, budget_reason
from kernelmap.checks import Question, Rules, reasons
from kernelmap.contracts import alignment
from kernelmap.models.contract import Contract
from kernelmap.models.kernel_map import KernelMap, Selection
from kernelmap.models.plan import Reason
from kernelmap.registry import Registry
from kernelmap.resolver import Case
from kernelmap.templates import TemplateError, fill, holes
from kernelmap.vocabulary import FORMATS, Status


@dataclass(frozen=True, slots=True)
class Change:
    """One fact that could be otherwise."""

    kind: str
    """route, promote, isa, device, dims, exclude, pin, evidence, budget, phase, priority, storage or option."""
    text: str
    """In words, e.g. ``promoted to production`` or ``host had avx512vnni``."""
    flag: str = ""
    """The command-line flag that makes it so, if there is one."""


@dataclass(frozen=True, slots=True)
class Flip:
    """A smallest set of changes under which the provider would be selected; empty ``changes`` if none was found."""

    provider: str
    changes: tuple[Change, ...]

    @property
    def text(self) -> str:
        """One line: ``selected with: --route …`` or ``selected if …``."""
        if not self.changes:
            return "no change of these facts would select it"
        if all(change.flag for change in self.changes):
            return "selected with: " + " ".join(change.flag for change in self.changes)
        return "selected if " + " and ".join(change.text for change in self.changes)


@dataclass(frozen=True, slots=True)
class _World:
    """The facts that a flip may change."""

    question: Question
    item: KernelMap
    ladder: tuple[KernelMap, ...]
    cases: tuple[Case, ...]
    """Every case of the group: a preparation budget holds all that a map would serve, or none."""
    budget_free: bool = False
    evidence_free: bool = False


_Apply = Callable[[_World], _World]


def flip_of(provider: str, cases: Sequence[Case], registry: Registry, question: Question) -> Flip:
    """The smallest flip for a provider of the question's group, by re-running every check on the flipped facts.

    ``cases`` are all of the circuit's.
    """
    return Flip(provider, _smallest(_world(provider, cases, registry, question)) or ())


def flip_across(
    provider: str, cases: Sequence[Case], registry: Registry, question: Question, options: Mapping[str, Sequence[str]]
) -> Flip:
    """The smallest flip for a provider of another group: first what would make the op ask for that group.

    ``cases`` are all of the circuit's, ``options`` the values of its options, the one now first. Without changes if
    other storage formats and options cannot make the op ask for it: it is another operation, or another arithmetic.
    """
    shared = question.shared
    contract = registry.contracts[registry.maps[provider].selection.equivalence_group]
    asking = _asking(question, contract, options) if contract.op == shared.op.op else None
    if asking is None or contract.static_dims != shared.dims.keys():
        return Flip(provider, ())
    moved = replace(shared, group=contract.equivalence_group, contract=contract)
    there = tuple(replace(case, shared=moved) if case.shared is shared else case for case in cases)
    rest = _smallest(_world(provider, there, registry, replace(question, shared=moved)))
    needs = [f"{dim} % {step} == 0" for dim, step in sorted(alignment(contract).items()) if shared.dims[dim] % step]
    aligned = (Change("dims", " and ".join(needs)),) if needs else ()
    return Flip(provider, (*asking, *aligned, *rest) if rest is not None else ())


def _world(provider: str, cases: Sequence[Case], registry: Registry, question: Question) -> _World:
    group = question.shared.group
    ladder = registry.ladders.get(group, ())
    item = next(entry for entry in ladder if entry.id == provider)
    return _World(question, item, ladder, tuple(case for case in cases if case.shared.group == group))


def _smallest(world: _World) -> tuple[Change, ...] | None:
    """The fewest changes under which the world's provider is selected, none if it is; None if no changes do it."""
    options = tuple(_options(world))
    if not _selected(_changed(world, options)):
        return None  # a change only takes reasons away: what all of them do not reach, no few reach
    return next(
        tuple(change for change, _ in chosen)
        for count in range(len(options) + 1)
        for chosen in combinations(options, count)
        if _selected(_changed(world, chosen))
    )


def _changed(world: _World, chosen: Iterable[tuple[Change, _Apply]]) -> _World:
    for _, apply in chosen:
        world = apply(world)
    return world


def _asking(question: Question, contract: Contract, options: Mapping[str, Sequence[str]]) -> tuple[Change, ...] | None:
    """The fewest storage formats and options with which the op's template names the contract's group, if any do."""
    template, stored = question.shared.op.equivalence_group, question.shared.dtypes
    ports = {port.name: port.dtype for port in contract.weights}
    choices: dict[str, Sequence[str]] = {}
    for name in dict.fromkeys(holes(template)):
        dtype = ports.get(name, "")
        choices[name] = options[name] if name in options else contract.dtype_vars.get(dtype, (dtype,))
    found: list[tuple[Change, ...]] = []
    for values in product(*choices.values()):
        given = dict(zip(choices, values, strict=True))
        formats = {name: value for name, value in given.items() if name not in options}
        with suppress(TemplateError):
            if fill(template, formats, given) == contract.equivalence_group:
                # Ports that the template does not name have the format that the contract says.
                fixed = {name: dtype for name, dtype in ports.items() if dtype in FORMATS and name in stored}
                found.append(tuple(_stored({**fixed, **formats}, stored)) + tuple(_chosen(given, options)))
    return min(found, key=len, default=None)


def _stored(wanted: Mapping[str, str], stored: Mapping[str, str]) -> Iterator[Change]:
    others: dict[str, list[str]] = {}
    for name, value in wanted.items():
        if stored.get(name) != value:
            others.setdefault(value, []).append(name)
    for value, names in others.items():
        yield Change("storage", f"{' and '.join(names)} {'were' if len(names) > 1 else 'was'} stored as {value}")


def _chosen(given: Mapping[str, str], options: Mapping[str, Sequence[str]]) -> Iterator[Change]:
    for name, value in given.items():
        if name in options and options[name][0] != value:
            yield Change("option", f"option {name} were {value}", f"--option {name}={value}")


def _options(world: _World) -> Iterator[tuple[Change, _Apply]]:
    """Changes that could matter, the cheapest for a user first."""
    item, question = world.item, world.question
    if not item.executable:
        return  # nothing makes code of it
    target = f"{question.name}:{question.phase.value}"
    if item.selection.status is Status.CANDIDATE:
        yield Change("route", "a route allowed it", f"--route {target}={item.id}"), _route
    if item.id in question.rules.exclude:
        yield Change("exclude", "it were not excluded"), _include
    pinned = question.rules.pins.get((question.name, question.phase))
    free = replace(question, rules=replace(question.rules, pins={}))
    above = [o.id for o in world.ladder if o.selection.priority > item.selection.priority and not reasons(o, free)]
    if pinned is not None and pinned != item.id:
        if above:
            yield Change("pin", f"it were pinned instead of {pinned}"), _pin
        else:
            yield Change("pin", f"{pinned} were not pinned"), _unpin
    elif above:
        # A pin, not an exclusion of those above: it is about this op in this phase and can leave no hole elsewhere.
        yield Change("priority", f"it were pinned before {' and '.join(above)}", f"--pin {target}={item.id}"), _pin
    missing = tuple(feature for feature in item.requires.isa if feature not in question.features)
    if missing:
        yield Change("isa", f"host had {', '.join(missing)}"), _features
    if any(reason.check == "device" for reason in reasons(item, question)):
        yield Change("device", f"host had {item.requires.device.value}"), _device
    needs = [c.refusal(name, question.shared.dims[name]) for name, c in item.constraints.dims.items()]
    if any(needs):
        yield Change("dims", " and ".join(need for need in needs if need)), _dims
    if question.phase not in item.selection.phases:
        yield Change("phase", f"its map listed {question.phase.value}"), _phase
    if question.rules.evidence == "require":
        yield Change("evidence", "it had valid evidence"), _evidence
    if item.weight_preparation:
        yield Change("budget", "its preparation budget held all its layers"), _budget
    if item.selection.status is not Status.PRODUCTION:
        yield Change("promote", "promoted"), _promote


def _selected(world: _World) -> bool:
    """Whether the world's provider comes out on top."""
    if _refused(world, world.item):
        return False
    own = world.item.selection.priority
    for other in world.ladder:
        if other.id != world.item.id and other.selection.priority >= own and not _refused(world, other):
            return False
    return True


def _refused(world: _World, item: KernelMap) -> list[Reason]:
    found = _reasons(world, item, world.question)
    if not found and item.weight_preparation and not (world.budget_free and item is world.item):
        reason = budget_reason(item, _served(world, item))
        if reason is not None:
            found.append(reason)
    return found


def _reasons(world: _World, item: KernelMap, question: Question) -> list[Reason]:
    found = reasons(item, question)
    if world.evidence_free and item is world.item:
        found = [reason for reason in found if reason.check != "evidence"]
    return found


def _served(world: _World, item: KernelMap) -> list[Served]:
    """All that a map would serve in this world."""
    asked = ((case, replace(world.question, shared=case.shared, phase=case.phase)) for case in world.cases)
    return [Served(case.shared, case.instances) for case, question in asked if not _reasons(world, item, question)]


def _rules(world: _World, **changes: object) -> _World:
    rules: Rules = replace(world.question.rules, **changes)  # type: ignore[arg-type]
    return replace(world, question=replace(world.question, rules=rules))


def _map(world: _World, item: KernelMap) -> _World:
    return replace(world, item=item, ladder=tuple(item if o.id == item.id else o for o in world.ladder))


def _selection(world: _World, **changes: object) -> _World:
    selection = Selection.model_validate({**dict(world.item.selection), **changes})
    return _map(world, world.item.model_copy(update={"selection": selection}))


def _route(world: _World) -> _World:
    question = world.question
    return _rules(world, routes=question.rules.routes | {(question.name, question.phase, world.item.id)})


def _include(world: _World) -> _World:
    return _rules(world, exclude=world.question.rules.exclude - {world.item.id})


def _unpin(world: _World) -> _World:
    key = (world.question.name, world.question.phase)
    return _rules(world, pins={k: v for k, v in world.question.rules.pins.items() if k != key})


def _pin(world: _World) -> _World:
    question = world.question
    return _rules(world, pins={**question.rules.pins, (question.name, question.phase): world.item.id})


def _features(world: _World) -> _World:
    features = world.question.features | set(world.item.requires.isa)
    return replace(world, question=replace(world.question, features=features))


def _device(world: _World) -> _World:
    host = world.question.host
    changed = host.model_copy(update={"devices": (*host.devices, world.item.requires.device.value)})
    return replace(world, question=replace(world.question, host=changed))


def _dims(world: _World) -> _World:
    """Dims that fit cannot be made up for a real model: the constraint is lifted instead."""
    return _map(world, world.item.model_copy(update={"constraints": type(world.item.constraints)()}))


def _phase(world: _World) -> _World:
    return _selection(world, phases=(*world.item.selection.phases, world.question.phase))


def _evidence(world: _World) -> _World:
    return replace(world, evidence_free=True)


def _budget(world: _World) -> _World:
    return replace(world, budget_free=True)


def _promote(world: _World) -> _World:
    return _selection(world, status=Status.PRODUCTION)
