"""What a bench times: an op of a group at static dims, taken from circuits or made up for the group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from kernelmap.circuit.elaborate import try_elaborate
from kernelmap.circuit.instances import Elaborated, SharedOp
from kernelmap.circuit.loading import CircuitFile, circuit_paths, read_circuit
from kernelmap.circuit.storage import reference_inventory
from kernelmap.errors import Diagnostic, KernelmapError, nearest
from kernelmap.expressions import Env, ExpressionError
from kernelmap.models.base import Scalar
from kernelmap.models.circuit import Circuit
from kernelmap.models.contract import Contract, Param
from kernelmap.models.host import Host
from kernelmap.models.policy import Policy, PolicyRoute
from kernelmap.registry import Registry
from kernelmap.resolver import cases_of, decide, layer_ranges
from kernelmap.vocabulary import Phase, Status

STEPS = (Phase.PREFILL, Phase.DECODE)
_OF_POLICY = frozenset({"KM456", "KM457"})
"""Names in a policy that mean nothing. Holes and ties are measured all the same."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the resolver says of a group's providers in one phase."""

    incumbent: str | None
    eligible: tuple[str, ...]
    """By falling priority; candidates as if every one were routed."""
    ineligible: Mapping[str, tuple[str, ...]]
    """Provider to its reasons."""


@dataclass(frozen=True, slots=True)
class Spot:
    """One op of a group at static dims and params, and who may run it in each phase."""

    op: str
    contract: Contract
    dims: Mapping[str, int]
    params: Mapping[str, Scalar]
    dtypes: Mapping[str, str]
    """Format or number type of each port that the op binds; optional ports may be absent."""
    source: str
    policy: Policy = field(default_factory=Policy)
    """What the policy and the circuit's routes say of this op, under its name here."""
    verdicts: Mapping[Phase, Verdict] = field(default_factory=dict)


def circuit_spots(
    circuit: CircuitFile, elaborated: Elaborated, registry: Registry, host: Host, policy: Policy
) -> list[Spot]:
    """The distinct ops of an elaborated circuit, at its own dims, with verdicts by its routes and the policy.

    Raises KernelmapError for a policy that names what does not exist.
    """
    free = policy.model_copy(update={"routes": (*policy.routes, *_every_candidate(elaborated, registry))})
    strict = decide(elaborated, circuit.source, registry, host, policy)
    if unknown := [item for item in strict.problems if item.code in _OF_POLICY]:
        raise KernelmapError(unknown)
    wide = decide(elaborated, circuit.source, registry, host, free.normalised())
    found: dict[tuple[object, ...], Spot] = {}
    for case, decision, loose in zip(strict.cases, strict.decisions, wide.decisions, strict=True):
        shared = case.shared
        key = (shared.group, *shared.dims.items(), *shared.params.items(), *sorted(shared.dtypes.items()))
        layers = f" layers {layer_ranges(decision.layers)}" if decision.layers else ""
        source = f"{elaborated.circuit.id} {shared.op.name}{layers}"
        own = _policy_of(shared.op.name, elaborated.circuit, policy)
        made = Spot(shared.op.name, shared.contract, shared.dims, shared.params, shared.dtypes, source, own)
        spot = found.get(key, made)
        if case.phase not in STEPS or case.phase in spot.verdicts:
            continue  # another op of equal group and dims was there: one measurement holds for both
        refused = {c.id: tuple(f"{r.code} {r.message}" for r in c.reasons) for c in loose.candidates if not c.eligible}
        eligible = tuple(c.id for c in loose.candidates if c.eligible)
        verdict = Verdict(decision.provider, eligible, refused)
        found[key] = replace(spot, verdicts={**spot.verdicts, case.phase: verdict})
    return list(found.values())


def _every_candidate(elaborated: Elaborated, registry: Registry) -> set[PolicyRoute]:
    return {
        PolicyRoute(op=case.shared.op.name, phase=case.phase, allow=item.id)
        for case in cases_of(elaborated)
        for item in registry.ladders.get(case.shared.group, ())
        if item.selection.status is Status.CANDIDATE and item.executable
    }


def _policy_of(op: str, circuit: Circuit, policy: Policy) -> Policy:
    """The part of a policy that is about one op, with the circuit's own routes for it."""
    own = {PolicyRoute(op=op, phase=phase, allow=r.allow) for r in circuit.routes if r.op == op for phase in r.phases}
    return general(policy).model_copy(
        update={
            "routes": (*own, *(route for route in policy.routes if route.op == op)),
            "pin": tuple(pin for pin in policy.pin if pin.op == op),
        }
    ).normalised()  # fmt: skip


def general(policy: Policy) -> Policy:
    """The part of a policy that is about no op and no option: exclusions, evidence, kill switches."""
    return Policy(exclude=policy.exclude, evidence=policy.evidence, kill_switches=policy.kill_switches)


def shipped_shapes(group: str, registry: Registry, folders: Sequence[Path] = ()) -> Iterator[tuple[SharedOp, str]]:
    """The shapes at which circuits ask for a group, each once, with the circuit's and op's names."""
    seen: set[tuple[object, ...]] = set()
    for path in circuit_paths(tuple(folders)).values():
        try:
            item = read_circuit(str(path.resolve()))
            inventory = reference_inventory(item.circuit, item.source)
        except KernelmapError:
            continue  # `check` reports what is wrong with circuits
        elaborated, _ = try_elaborate(item.circuit, item.source, inventory, registry.contracts)
        for case in cases_of(elaborated) if elaborated is not None else ():
            shared = case.shared
            key = (*shared.dims.items(), *shared.params.items(), *shared.dtypes.items())
            if shared.group == group and key not in seen:
                seen.add(key)
                yield shared, f"{item.circuit.id} {shared.op.name}"


def made_up_spot(contract: Contract, dims: Mapping[str, int], source: str, policy: Policy) -> Spot:
    """A spot of a contract at given static dims, with default params and every optional port.

    Raises KernelmapError (KM583) if no params fit the contract's requirements at these dims.
    """
    params = {param.name: _param(param) for param in contract.params}
    env = Env(names={**dims, **dict.fromkeys(contract.dynamic_dims, 1), **params})
    for predicate in contract.requires:
        try:
            holds = predicate.evaluate(env)
        except ExpressionError as error:
            raise KernelmapError(Diagnostic("KM583", f"{predicate}: {error.message}")) from None
        if not holds:
            message = f"{contract.equivalence_group} requires {predicate}"
            raise KernelmapError(Diagnostic("KM583", message, found=sizes_text(dims), help="give fitting --shape"))
    types = {
        name: contract.dtype_vars[port.dtype][0] if port.dtype in contract.dtype_vars else port.dtype
        for name, port in contract.ports.items()
    }
    return Spot("bench", contract, dict(dims), params, types, source, general(policy))


def _param(param: Param) -> Scalar:
    if param.default is not None:
        return param.default
    if param.type == "enum":
        return param.choices[0]
    if param.type == "bool":
        return False
    if param.type == "int":
        return int(param.min) if param.min is not None else 1
    return float(param.min) if param.min is not None else 1.0


def with_sizes(spot: Spot, sizes: Mapping[str, int]) -> Spot:
    """The same op with those static dims changed that it has."""
    mine = {name: size for name, size in sizes.items() if spot.dims.get(name, size) != size}
    return replace(spot, dims={**spot.dims, **mine}, source=f"{spot.source} with --shape") if mine else spot


def sizes_apply(spots: Iterable[Spot], sizes: Mapping[str, int]) -> None:
    """Raises KernelmapError (KM583) for a size that is a static dim of none of the ops."""
    known = {name for spot in spots for name in spot.contract.static_dims}
    if unknown := [name for name in sizes if name not in known]:
        help = f"they have {', '.join(sorted(known))}; --tokens sets dynamic dims"
        raise KernelmapError(
            Diagnostic("KM583", f"no op has a static dim {name!r}", near=nearest(name, known), help=help)
            for name in unknown
        )


def sizes_text(dims: Mapping[str, int], leave_out: Iterable[str] = ()) -> str:
    """``E=256 H=2048``."""
    left = set(leave_out)
    return " ".join(f"{name}={size}" for name, size in sorted(dims.items()) if name not in left)
