"""A lock's choices as a plan: what was locked runs again, or nothing does.

Only what the choices rest on counts as drift: circuit, storage, and for each chosen provider its map, its sources, its
contract with the reference, and the variants that may run. Another provider that was added or promoted since changes
nothing of what was locked, so that yesterday's choices can run beside today's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kernelmap.circuit.elaborate import elaborate
from kernelmap.circuit.loading import CircuitFile
from kernelmap.collection import collection_paused
from kernelmap.errors import Diagnostic, KernelmapError
from kernelmap.lock import locked_policy
from kernelmap.models.host import Host
from kernelmap.models.inventory import Inventory
from kernelmap.models.lock import Lock, LockedChoice
from kernelmap.models.plan import Decision, Plan
from kernelmap.models.policy import Policy
from kernelmap.registry import Registry
from kernelmap.resolver import Resolution, decide, layer_ranges, make_plan, redecided
from kernelmap.source_digests import SourceTree

_OF_RANK = frozenset({"rank"})
_OF_NAMES = frozenset({"KM456", "KM457"})
"""A policy that names what there is not: a typo must not look obeyed."""
_AGAIN = "a lock runs only while all that its choices rest on is as it was: write it anew"


def plan_of_lock(
    lock: Lock,
    circuit: CircuitFile,
    inventory: Inventory,
    registry: Registry,
    host: Host,
    given: Policy,
    sources: SourceTree,
    name: str = "the lock",
) -> Plan:
    """The plan that runs a lock's choices of a circuit on this host.

    Takes the lock's policy with what is ``given`` now added: a deny counts wherever it stands. ``name`` begins every
    message. Raises KernelmapError with all that drifted.
    """
    policy = locked_policy(lock, given)
    with collection_paused():
        elaborated = elaborate(circuit.circuit, circuit.source, inventory, registry.contracts, policy.options)
        made = decide(elaborated, circuit.source, registry, host, policy)
        asked = _Asked(lock, circuit, inventory, registry, host, policy, sources, name)
        decisions, problems = asked.choose(made)
        if problems:
            raise KernelmapError(dict.fromkeys(problems))
        made.decisions = decisions
        return make_plan(made, policy)


class _Asked:
    def __init__(
        self, lock: Lock, circuit: CircuitFile, inventory: Inventory, registry: Registry, host: Host, policy: Policy,
        sources: SourceTree, name: str,
    ) -> None:  # fmt: skip
        self.lock, self.registry, self.host, self.policy = lock, registry, host, policy
        self.sources, self.name = sources, name
        self.circuit, self.inventory = circuit.circuit, inventory
        self.problems: list[Diagnostic] = []

    def demand(self, code: str, what: str, locked: str, now: str) -> None:
        """Reports what is not as it was locked."""
        if locked != now:
            message = f"{self.name}: {what} changed"
            self.problems.append(Diagnostic(code, message, expected=locked, found=now, help=_AGAIN))

    def choose(self, made: Resolution) -> tuple[tuple[Decision, ...], list[Diagnostic]]:
        """Every decision with the locked provider in it, and all problems."""
        held = self.lock.circuits.get(self.circuit.id)
        host = self._host()
        if held is None or host is None:
            what = f"circuit {self.circuit.id!r}" if held is None else "this machine"
            holds = f"it holds {', '.join(self.lock.circuits)} on {', '.join(self.lock.hosts)}"
            return (), [Diagnostic("KM830", f"{self.name} does not hold {what}", help=holds)]
        self.problems += [problem for problem in made.problems if problem.code in _OF_NAMES]
        self.demand("KM812", f"circuit {self.circuit.id}", held.circuit, self.circuit.digest)
        self.demand("KM815", "the storage", held.inventory, self.inventory.digest)
        if self.problems:
            return (), self.problems
        choices = {
            (choice.op, phase, choice.layers, choice.group): choice
            for phase, hosts in held.choices.items()
            for choice in hosts.get(host, ())
        }
        decisions = []
        for case, decision in zip(made.cases, made.decisions, strict=True):
            choice = choices.pop((decision.name, decision.phase, layer_ranges(decision.layers), decision.group), None)
            if choice is None or choice.provider is None:
                message = f"{self.name} has no choice for {decision.key} of {decision.group}"
                self.problems.append(Diagnostic("KM578", message, help=_AGAIN))
                continue
            item = self.registry.maps.get(choice.provider)
            before = len(self.problems)
            self.problems += self._refusals(choice, decision)
            if item is not None and len(self.problems) == before:
                decided = redecided(decision, case, item, self.host, self.policy.kill_switches)
                self._rests_on(choice, decided)
                decisions.append(decided)
        for op, phase, _, group in choices:
            message = f"{self.name} has a choice for {op} ({phase.value}) of {group}, which nothing asks for"
            self.problems.append(Diagnostic("KM578", message, help=_AGAIN))
        return tuple(decisions), self.problems

    def _host(self) -> str | None:
        """This machine's entry, else the only one: the providers' own needs are checked either way."""
        here: Sequence[str] = [name for name, item in self.lock.hosts.items() if item.profile is None]
        names = here or list(self.lock.hosts)
        return names[0] if len(names) == 1 else None

    def _refusals(self, choice: LockedChoice, decision: Decision) -> Iterator[Diagnostic]:
        """The resolver's reasons against the locked provider now, other than rank."""
        label = f"{self.name}: {choice.op} ({decision.phase.value})"
        candidate = next((item for item in decision.candidates if item.id == choice.provider), None)
        if candidate is None:
            yield Diagnostic("KM811", f"{label}: {choice.provider} is gone from {choice.group}", help=_AGAIN)
            return
        for reason in candidate.reasons:
            if reason.check not in _OF_RANK:
                message = f"{label}: {choice.provider} is not eligible now: {reason.message}"
                yield Diagnostic(reason.code, message, help=_AGAIN)

    def _rests_on(self, choice: LockedChoice, decision: Decision) -> None:
        name, group = str(choice.provider), choice.group
        locked_map, locked_contract = self.lock.maps.get(name), self.lock.contracts.get(group)
        if locked_map is None or locked_contract is None:
            message = f"{self.name} chooses {name} and does not say what it rests on"
            self.problems.append(Diagnostic("KM578", message, help=_AGAIN))
            return
        item, contract = self.registry.maps[name], self.registry.contracts[group]
        self.demand("KM801", f"contract {group}", locked_contract.contract, contract.digest)
        self.demand("KM802", f"the reference of {group}", locked_contract.oracle, self.sources.oracle_digest(contract))
        self.demand("KM803", f"map {name}", locked_map.map, item.digest)
        self.demand("KM804", f"the source of {name}", locked_map.sources, self.sources.map_digest(item))
        now = ", ".join(variant.name for variant in decision.variants if variant.enabled)
        what = f"what may run of {name} ({choice.op}, {decision.phase.value})"
        self.demand("KM808", what, ", ".join(choice.variants), now)
