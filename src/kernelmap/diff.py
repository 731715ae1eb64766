"""Comparing locks: every change with its class, equal changes of several layers and hosts as one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kernelmap.errors import Diagnostic, Severity
from kernelmap.models.diff import Change, ChangeKind, Diff
from kernelmap.models.lock import Lock, LockedChoice, LockedCircuit, LockedMap
from kernelmap.models.policy import Policy
from kernelmap.resolver import layer_ranges
from kernelmap.vocabulary import Phase

K = ChangeKind
CODES: Mapping[ChangeKind, str] = {
    K.CONTRACT: "KM801", K.ORACLE: "KM802", K.MAP: "KM803", K.SOURCE: "KM804", K.PROVIDER: "KM805",
    K.UNRESOLVABLE: "KM806", K.RESOLVABLE: "KM807", K.VARIANTS: "KM808", K.REASONS: "KM809",
    K.PROVIDER_ADDED: "KM810", K.PROVIDER_REMOVED: "KM811", K.CIRCUIT: "KM812", K.CIRCUIT_ADDED: "KM813",
    K.CIRCUIT_REMOVED: "KM814", K.INVENTORY: "KM815", K.HOST: "KM816", K.HOSTS: "KM817", K.POLICY: "KM818",
    K.OP: "KM819", K.CONTRACTS: "KM820",
}  # fmt: skip
"""Diagnostic code of each class of change."""
_OUTSIDE = "-"
_NOTHING = "nothing"


def compare(before: Lock, after: Lock, names: tuple[str, str] = ("before", "after")) -> Diff:
    """Every change from ``before`` to ``after``.

    Hosts are matched by name, or as the only ones of two locks (so that two hosts can be compared). Circuits that
    only ``after`` holds count if ``before`` is complete.
    """
    hosts = _pairs(before, after)
    found = [*_files(before, after), *_hosts(before, after, hosts), *_policy(before.policy, after.policy)]
    for name in sorted(before.circuits.keys() | after.circuits.keys()):
        one, two = before.circuits.get(name), after.circuits.get(name)
        if one is None and before.complete:
            found.append(Change(kind=K.CIRCUIT_ADDED, subject=name))
        elif two is None:
            found.append(Change(kind=K.CIRCUIT_REMOVED, subject=name))
        elif one is not None and two is not None:
            found += _circuit(name, one, two, hosts)
    order = list(ChangeKind)
    found.sort(key=lambda c: (order.index(c.kind), c.subject, c.circuit, c.op, c.phase or "", c.layers, c.hosts))
    return Diff(before=names[0], after=names[1], changes=tuple(found))


def diagnostics(diff: Diff, severity: Severity = Severity.ERROR, help: str = "") -> list[Diagnostic]:
    """One diagnostic a change."""
    found = []
    for change in diff.changes:
        message = f"{change.kind.value}: {' '.join(part for part in (change.subject, change.where) if part)}"
        found.append(Diagnostic(
            CODES[change.kind], message, severity, expected=change.before, found=change.after, help=help
        ))  # fmt: skip
    return found


def _pairs(before: Lock, after: Lock) -> dict[str, str]:
    """Name of each compared host before, to its name after."""
    if len(before.hosts) == len(after.hosts) == 1:
        return dict(zip(before.hosts, after.hosts, strict=True))
    return {name: name for name in before.hosts if name in after.hosts}


def _hosts(before: Lock, after: Lock, pairs: Mapping[str, str]) -> Iterator[Change]:
    for name in before.hosts.keys() - pairs.keys():
        yield Change(kind=K.HOSTS, subject=name, before="there", after="gone")
    for name in after.hosts.keys() - set(pairs.values()):
        yield Change(kind=K.HOSTS, subject=name, before=_NOTHING, after="there")
    for one, two in pairs.items():
        first, second = before.hosts[one], after.hosts[two]
        lost: list[str] = []
        won: list[str] = []
        for feature in sorted(first.isa.keys() & second.isa.keys()):
            if first.isa[feature] != second.isa[feature]:
                (lost if first.isa[feature] else won).append(feature)
        lost += [device for device in first.devices if device not in second.devices]
        won += [device for device in second.devices if device not in first.devices]
        if lost or won:
            subject = one if one == two else f"{one}, now {two}"
            texts = [f"{name} {', '.join(items)}" for name, items in (("lost", lost), ("won", won)) if items]
            yield Change(kind=K.HOST, subject=subject, after="; ".join(texts))


def _policy(before: Policy, after: Policy) -> Iterator[Change]:
    one = before.model_dump(mode="json", exclude={"schema_ref"})
    two = after.model_dump(mode="json", exclude={"schema_ref"})
    for name in one:
        if one[name] != two[name]:
            yield Change(kind=K.POLICY, subject=name, before=_plain(one[name]), after=_plain(two[name]))


def _plain(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(_plain, value)) or _NOTHING
    if isinstance(value, dict):
        return " ".join(f"{key}={item}" for key, item in value.items() if item is not None) or _NOTHING
    return str(value)


def _files(before: Lock, after: Lock) -> Iterator[Change]:
    """Changes of contracts, references, maps and sources."""
    for name in sorted(before.contracts.keys() | after.contracts.keys()):
        one, two = before.contracts.get(name), after.contracts.get(name)
        if one is None or two is None:
            yield Change(kind=K.CONTRACTS, subject=name, after="removed" if two is None else "added")
            continue
        if one.contract != two.contract:
            yield Change(kind=K.CONTRACT, subject=name, before=one.contract, after=two.contract)
        if one.oracle != two.oracle:
            yield Change(kind=K.ORACLE, subject=name, before=one.oracle, after=two.oracle)
    for name in sorted(before.maps.keys() | after.maps.keys()):
        first, second = before.maps.get(name), after.maps.get(name)
        if first is None and second is not None:
            yield Change(kind=K.PROVIDER_ADDED, subject=name, after=_rank(second))
        elif first is not None and second is None:
            yield Change(kind=K.PROVIDER_REMOVED, subject=name, before=_rank(first))
        elif first is not None and second is not None:
            yield from _map(name, first, second)


def _map(name: str, one: LockedMap, two: LockedMap) -> Iterator[Change]:
    if one.map != two.map:
        texts = (_rank(one), _rank(two)) if _rank(one) != _rank(two) else (one.map, two.map)
        yield Change(kind=K.MAP, subject=name, before=texts[0], after=texts[1])
    if one.sources != two.sources:
        yield Change(kind=K.SOURCE, subject=name, before=one.sources, after=two.sources)


def _rank(item: LockedMap) -> str:
    return f"{item.status.value} {item.priority} in {item.group}"


def _circuit(name: str, one: LockedCircuit, two: LockedCircuit, hosts: Mapping[str, str]) -> Iterator[Change]:
    if one.circuit != two.circuit:
        yield Change(kind=K.CIRCUIT, subject=name, before=one.circuit, after=two.circuit)
    if one.inventory != two.inventory:
        yield Change(kind=K.INVENTORY, subject=name, before=one.inventory, after=two.inventory)
    held: dict[tuple[ChangeKind, str, str], list[str]] = {}
    found: dict[_Key, dict[str, list[str]]] = {}
    for mine, theirs in hosts.items():
        host = mine if mine == theirs else f"{mine}, now {theirs}"
        first, second = one.problems.get(mine, ()), two.problems.get(theirs, ())
        for text in (*first, *second):
            if (text in first) != (text in second):
                kind = K.UNRESOLVABLE if text in second else K.RESOLVABLE
                pair = ("", text) if text in second else (text, "")
                held.setdefault((kind, *pair), []).append(host)
        for layer, key in _choices(one, two, mine, theirs):
            found.setdefault(key, {}).setdefault(host, []).append(layer)
    for (kind, before, after), where in held.items():
        yield Change(kind=kind, circuit=name, hosts=tuple(where), before=before, after=after)
    for key, places in found.items():
        by_layers: dict[str, list[str]] = {}
        for host, layers in places.items():
            numbers = [int(layer) for layer in layers if layer != _OUTSIDE]
            by_layers.setdefault(layer_ranges(numbers), []).append(host)
        for span, where in by_layers.items():
            yield Change(
                kind=key.kind, subject=key.subject, circuit=name, op=key.op, phase=key.phase, layers=span,
                hosts=tuple(where), before=key.before, after=key.after,
            )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Key:
    """A change of an op, whatever the layer and host."""

    kind: ChangeKind
    op: str
    phase: Phase
    subject: str
    before: str
    after: str


def _choices(one: LockedCircuit, two: LockedCircuit, mine: str, theirs: str) -> Iterator[tuple[str, _Key]]:
    """(layer, change) of every op in every layer on one host."""
    for phase in Phase:
        first = _by_layer(one.choices.get(phase, {}).get(mine, ()))
        second = _by_layer(two.choices.get(phase, {}).get(theirs, ()))
        if (two.problems.get(theirs) and not second) or (one.problems.get(mine) and not first):
            continue  # the circuit did not even elaborate, and its problems say why
        for op, layer in dict.fromkeys((*first, *second)):
            for kind, subject, before, after in _choice(first.get((op, layer)), second.get((op, layer))):
                yield layer, _Key(kind, op, phase, subject, before, after)


def _by_layer(choices: tuple[LockedChoice, ...]) -> dict[tuple[str, str], LockedChoice]:
    found = {}
    for choice in choices:
        for layer in _layers(choice.layers):
            found[choice.op, layer] = choice
    return found


def _layers(text: str) -> Iterator[str]:
    if not text:
        yield _OUTSIDE
        return
    for part in text.split(","):
        first, _, last = part.partition("-")
        yield from map(str, range(int(first), int(last or first) + 1))


def _choice(one: LockedChoice | None, two: LockedChoice | None) -> Iterator[tuple[ChangeKind, str, str, str]]:
    if one is None or two is None:
        yield K.OP, "", "there" if one is not None else _NOTHING, "there" if two is not None else "gone"
        return
    if one.group != two.group:
        yield K.OP, "", one.group, two.group
    before, after = (choice.provider or f"no provider: {_hole(choice)}" for choice in (one, two))
    if one.provider != two.provider:
        kind = K.PROVIDER
        if two.provider is None:
            kind = K.UNRESOLVABLE
        elif one.provider is None:
            kind = K.RESOLVABLE
        elif one.group != two.group:
            return  # another group, another provider: the op changed
        yield kind, "", before, after
    elif one.variants != two.variants:
        yield K.VARIANTS, one.provider or "", ", ".join(one.variants), ", ".join(two.variants)
    for name in one.rejected.keys() & two.rejected.keys():
        if one.rejected[name] != two.rejected[name]:
            yield K.REASONS, name, "; ".join(one.rejected[name]), "; ".join(two.rejected[name])


def _hole(choice: LockedChoice) -> str:
    """What each map of a group says of itself where none is selected."""
    texts = [f"{name}: {'; '.join(why) or 'ties with another'}" for name, why in choice.rejected.items()]
    return ", ".join(texts) or "the group has none"
