"""Making locks: every circuit resolved on every host, with the digests of what the choices rest on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from kernelmap.circuit.elaborate import try_elaborate
from kernelmap.circuit.loading import CircuitFile
from kernelmap.collection import collection_paused
from kernelmap.errors import Diagnostic, KernelmapError
from kernelmap.files import write_whole
from kernelmap.jsonsource import read_json
from kernelmap.models.host import Host
from kernelmap.models.inventory import Inventory
from kernelmap.models.loading import validate
from kernelmap.models.lock import Lock, LockedChoice, LockedCircuit, LockedContract, LockedHost, LockedMap
from kernelmap.models.plan import Decision, HostFacts
from kernelmap.models.policy import EvidencePolicy, Policy
from kernelmap.registry import Registry
from kernelmap.resolver import decide, layer_ranges
from kernelmap.source_digests import SourceTree

_OF_OPS = frozenset({"KM450", "KM452", "KM455"})
_STRICTNESS: tuple[EvidencePolicy, ...] = ("ignore", "warn", "require")


@dataclass(frozen=True, slots=True)
class Target:
    """A circuit to lock: what names it, the circuit, and its storage facts (of ``model``, or the reference storage)."""

    name: str
    circuit: CircuitFile
    inventory: Inventory
    model: str | None = None


@dataclass(frozen=True, slots=True)
class LockHost:
    """A host to lock for, and the profile to find it by again (None: this machine)."""

    host: Host
    profile: str | None = None


@dataclass(slots=True)
class LockMaker:
    """Collects the decisions of circuits on hosts; `lock` makes the record of all of them."""

    registry: Registry
    sources: SourceTree
    policy: Policy
    problems: list[Diagnostic] = field(default_factory=list)
    """What kept circuits from resolving, as the resolver says it; each once, however many hosts share it."""
    _groups: set[str] = field(default_factory=set)
    _hosts: dict[str, LockedHost] = field(default_factory=dict)
    _circuits: dict[str, LockedCircuit] = field(default_factory=dict)

    def know(self, host: LockHost) -> None:
        """Enters a host, of which nothing was asked yet. Raises KernelmapError for two hosts of one name."""
        self._know(host, HostFacts(name=host.host.name, devices=tuple(sorted(host.host.devices)), isa={}))

    def resolve(self, target: Target, hosts: Iterable[LockHost]) -> None:
        """Decides every op of a circuit on every host; holes are recorded, not raised."""
        circuit, source = target.circuit.circuit, target.circuit.source
        self._enter(target)
        with collection_paused():
            elaborated, wrong = try_elaborate(
                circuit, source, target.inventory, self.registry.contracts, self.policy.options
            )
            for item in hosts:
                self.know(item)
                if elaborated is None:
                    self._record(circuit.id, item.host.name, (), wrong)
                    continue
                made = decide(elaborated, source, self.registry, item.host, self.policy)
                self._know(item, made.host)
                self._record(circuit.id, item.host.name, made.decisions, made.problems)

    def add(self, target: Target, host: LockHost, facts: HostFacts, decisions: Iterable[Decision]) -> None:
        """Records the decisions of a plan that was made already."""
        self._enter(target)
        self._know(host, facts)
        self._record(target.circuit.circuit.id, facts.name, decisions, ())

    def _enter(self, target: Target) -> None:
        circuit = target.circuit.circuit
        if circuit.id in self._circuits:
            raise KernelmapError(Diagnostic("KM831", f"circuit {circuit.id!r} is named twice"))
        self._circuits[circuit.id] = LockedCircuit(
            target=target.name, model=target.model, circuit=circuit.digest, inventory=target.inventory.digest,
            choices={},
        )  # fmt: skip

    def _know(self, host: LockHost, facts: HostFacts) -> None:
        made = LockedHost(profile=host.profile, devices=facts.devices, isa=facts.isa)
        before = self._hosts.get(facts.name)
        if before is not None:
            if (before.profile, before.devices) != (made.profile, made.devices):
                raise KernelmapError(Diagnostic("KM831", f"two hosts are called {facts.name!r}"))
            made = made.model_copy(update={"isa": dict(sorted({**before.isa, **made.isa}.items()))})
        self._hosts[facts.name] = made

    def _record(
        self, circuit: str, host: str, decisions: Iterable[Decision], problems: Sequence[Diagnostic]
    ) -> None:  # fmt: skip
        old = self._circuits[circuit]
        phases, held = {phase: dict(hosts) for phase, hosts in old.choices.items()}, dict(old.problems)
        for decision in decisions:
            self._groups.add(decision.group)
            row = phases.setdefault(decision.phase, {})
            row[host] = (*row.get(host, ()), _choice(decision))
        # A hole or tie of an op stands in its choice already, with the reasons of every map.
        if others := [problem for problem in problems if problem.code not in _OF_OPS]:
            held[host] = tuple(dict.fromkeys(f"{p.code} {p.message}"[:2000] for p in others))
        self.problems += [problem for problem in problems if problem not in self.problems]
        self._circuits[circuit] = old.model_copy(update={"choices": phases, "problems": held})

    def lock(self, *, complete: bool = False, groups: Iterable[str] = ()) -> Lock:
        """The lock of all that was added, with the contracts and maps of ``groups`` too, asked for or not."""
        wanted = sorted({*self._groups, *(name for name in groups if name in self.registry.contracts)})
        maps = {item.id: item for group in wanted for item in self.registry.ladders.get(group, ())}
        return Lock(
            complete=complete,
            policy=self.policy.normalised(),
            hosts=dict(sorted(self._hosts.items())),
            contracts={name: self._contract(name) for name in wanted},
            maps={
                name: LockedMap(
                    group=item.selection.equivalence_group, status=item.selection.status,
                    priority=item.selection.priority, map=item.digest, sources=self.sources.map_digest(item),
                )
                for name, item in sorted(maps.items())
            },
            circuits=dict(sorted(self._circuits.items())),
        )  # fmt: skip

    def _contract(self, group: str) -> LockedContract:
        contract = self.registry.contracts[group]
        return LockedContract(contract=contract.digest, oracle=self.sources.oracle_digest(contract))


def _choice(decision: Decision) -> LockedChoice:
    return LockedChoice(
        op=decision.name,
        layers=layer_ranges(decision.layers),
        group=decision.group,
        provider=decision.provider,
        variants=tuple(variant.name for variant in decision.variants if variant.enabled),
        rejected={
            item.id: tuple(f"{reason.code} {reason.message}" for reason in item.reasons)
            for item in sorted(decision.candidates, key=lambda item: item.id)
            if not item.selected
        },
    )


def restricted(lock: Lock, circuit: str, host: str) -> Lock:
    """What a lock says of one circuit on one host. Raises KernelmapError if it says nothing of them."""
    found = lock.circuits.get(circuit)
    if found is None:
        raise KernelmapError(Diagnostic("KM830", f"the lock holds no circuit {circuit!r}", help=_holds(lock)))
    choices = {phase: {host: hosts[host]} for phase, hosts in found.choices.items() if host in hosts}
    if host not in lock.hosts or not (choices or host in found.problems):
        raise KernelmapError(
            Diagnostic("KM830", f"the lock holds no choices of {circuit} on {host}", help=_holds(lock))
        )
    groups = {choice.group for hosts in choices.values() for choice in hosts[host]}
    problems = {host: found.problems[host]} if host in found.problems else {}
    return Lock(
        complete=False,
        policy=lock.policy,
        hosts={host: lock.hosts[host]},
        contracts={name: item for name, item in lock.contracts.items() if name in groups},
        maps={name: item for name, item in lock.maps.items() if item.group in groups},
        circuits={circuit: found.model_copy(update={"choices": choices, "problems": problems})},
    )


def _holds(lock: Lock) -> str:
    return f"it holds {', '.join(lock.circuits) or 'no circuit'} on {', '.join(lock.hosts) or 'no host'}"


def read_lock(path: Path) -> Lock:
    """A lock file. Raises KernelmapError with every problem of the file, holes among them."""
    source = read_json(path)
    lock = validate(source, Lock)
    if lock.holes:
        place = source.place("")
        raise KernelmapError(Diagnostic("KM806", f"the lock has a hole: {hole}", place=place) for hole in lock.holes)
    return lock


def write_lock(lock: Lock, path: Path) -> None:
    """Writes a lock whole or not at all. Raises KernelmapError if it has holes or the file cannot be written."""
    if lock.holes:
        raise KernelmapError(Diagnostic("KM806", f"cannot lock {hole}") for hole in lock.holes)
    write_whole(lock.text(), path)


def locked_policy(lock: Lock, given: Policy) -> Policy:
    """The policy of a lock with what is given now added: a deny counts wherever it stands.

    Kill switches are those set now, not those of the lock; of two evidence policies the stricter holds. Raises
    KernelmapError for pins that contradict each other.
    """
    base = lock.policy
    options: Mapping[str, str] = {**base.options, **given.options}
    try:
        return Policy(
            routes=(*base.routes, *given.routes),
            exclude=(*base.exclude, *given.exclude),
            pin=(*base.pin, *given.pin),
            evidence=max(base.evidence, given.evidence, key=_STRICTNESS.index),
            kill_switches=given.kill_switches,
            options=options,
        ).normalised()
    except ValidationError as error:
        raise KernelmapError(Diagnostic("KM751", f"policy: {item['msg']}") for item in error.errors()) from None
