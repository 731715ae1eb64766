"""Binding a plan: verifies everything that the plan rests on, then imports, builds and prepares. Decides nothing."""

from __future__ import annotations

import importlib
import inspect
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kernelmap.circuit.elaborate import elaborate
from kernelmap.circuit.instances import BoundWeight, Elaborated, OpInstance, SharedOp
from kernelmap.circuit.loading import CircuitFile
from kernelmap.errors import BindError, Diagnostic, KernelmapError
from kernelmap.host import probe_host
from kernelmap.inventory import open_tensor
from kernelmap.map_checks import not_executable
from kernelmap.models.contract import Contract
from kernelmap.models.host import Host
from kernelmap.models.inventory import Inventory
from kernelmap.models.kernel_map import KernelMap, WeightPreparation
from kernelmap.models.plan import Decision, Plan, PlanVariant
from kernelmap.policies import switches_set
from kernelmap.registry import Registry
from kernelmap.resolver import Case, cases_of, kill_switches
from kernelmap.spec import BuildSpec
from kernelmap.vocabulary import Device, Phase
from kernelmap.weight_checks import weight_problems

_EXTRAS = {"torch": "torch"}
"""Packages that an optional extra of kernelmap brings, by module."""

Runner = Callable[..., int]
Progress = Callable[[str, int, int], None]
"""Called with what is being done, how many are done, and of how many."""


@dataclass(frozen=True, slots=True)
class BoundVariant:
    """A variant that may run, with its code."""

    plan: PlanVariant
    guards: tuple[tuple[str, str, int], ...]
    run: Runner

    def admits(self, dims: Mapping[str, int]) -> bool:
        """Whether the guards hold for these dims."""
        return all(dims[dim] >= bound if side == "min" else dims[dim] <= bound for dim, side, bound in self.guards)


@dataclass(frozen=True, slots=True)
class BoundOp:
    """An op instance in one phase, ready to run."""

    instance: OpInstance
    phase: Phase
    decision: Decision
    map: KernelMap
    variants: tuple[BoundVariant, ...]
    weights: Mapping[str, Any]
    """Weight port to array or prepared object; absent optional ports are missing."""

    @property
    def name(self) -> str:
        """Op name, with the layer."""
        layer = self.instance.layer
        return self.decision.name if layer is None else f"{self.decision.name}@{layer}"


@dataclass(frozen=True, slots=True)
class BoundPlan:
    """What a session runs: every op of every phase in order."""

    plan: Plan
    elaborated: Elaborated
    steps: Mapping[Phase, tuple[BoundOp, ...]]
    prepared_bytes: int
    """Bytes of all prepared tensors; a shared one counts once."""


def bind(
    plan: Plan,
    circuit: CircuitFile,
    registry: Registry,
    inventory: Inventory,
    *,
    host: Host | None = None,
    environ: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    check_weights: bool = True,
) -> BoundPlan:
    """Verifies digests, host, kill switches and signatures, builds the providers and prepares weights.

    ``host`` is the machine that will run (probed by default). ``check_weights`` refuses weight blocks whose factors are
    not finite, which reads every block once. Raises BindError with everything that does not fit.
    """
    host = host or probe_host()
    problems = _recheck(plan, circuit, registry, inventory, host, os.environ if environ is None else environ)
    if problems:
        raise BindError(problems)
    elaborated = elaborate(circuit.circuit, circuit.source, inventory, registry.contracts, plan.options)
    binder = _Binder(plan, registry, inventory, host, progress or _silent, check_weights)
    steps = binder.run(elaborated)
    if binder.problems:
        raise BindError(binder.problems)
    return BoundPlan(plan, elaborated, steps, sum(binder.sizes.values()))


def bind_also(
    bound: BoundPlan,
    chosen: Iterable[tuple[Case, Decision]],
    registry: Registry,
    inventory: Inventory,
    host: Host,
    *,
    progress: Progress | None = None,
) -> dict[tuple[str, Phase], tuple[BoundOp, ...]]:
    """Other decisions on ops of a bound plan, built and with weights of their own: (op with layer, phase) to them all.

    Raises BindError with everything that does not fit.
    """
    binder = _Binder(bound.plan, registry, inventory, host, progress or _silent, check_weights=False)
    found: dict[tuple[str, Phase], tuple[BoundOp, ...]] = {}
    chosen = tuple(chosen)
    for index, (case, decision) in enumerate(chosen):
        binder.progress(f"building {decision.provider}", index, len(chosen))
        item = registry.maps[str(decision.provider)]
        variants = binder._variants(case.shared, decision, item)
        for instance in case.instances if not binder.problems else ():
            op = BoundOp(instance, case.phase, decision, item, variants, binder._weights(instance, item))
            found[op.name, op.phase] = (*found.get((op.name, op.phase), ()), op)
    if binder.problems:
        raise BindError(binder.problems)
    return found


@dataclass(frozen=True, slots=True)
class Warmed:
    """A provider variant whose code was compiled or loaded, and how long that took."""

    provider: str
    variant: str
    seconds: float


def warm(
    plan: Plan,
    circuit: CircuitFile,
    registry: Registry,
    inventory: Inventory,
    *,
    host: Host | None = None,
    environ: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> tuple[Warmed, ...]:
    """Builds every selected provider without weights, so that its code is compiled and cached before it is needed.

    Verifies as `bind` does. Raises BindError with everything that does not fit.
    """
    host = host or probe_host()
    problems = _recheck(plan, circuit, registry, inventory, host, os.environ if environ is None else environ)
    if problems:
        raise BindError(problems)
    elaborated = elaborate(circuit.circuit, circuit.source, inventory, registry.contracts, plan.options)
    binder = _Binder(plan, registry, inventory, host, progress or _silent, check_weights=False)
    binder.build_all(elaborated)
    if binder.problems:
        raise BindError(binder.problems)
    return tuple(binder.warmed)


def _silent(_what: str, _done: int, _total: int) -> None:
    return None


def _recheck(
    plan: Plan, circuit: CircuitFile, registry: Registry, inventory: Inventory, host: Host, environ: Mapping[str, str]
) -> list[Diagnostic]:
    found: list[Diagnostic] = []

    def demand(code: str, what: str, expected: str, actual: str) -> None:
        if expected != actual:
            found.append(Diagnostic(code, f"{what} changed since the plan was made", expected=expected, found=actual))

    demand("KM501", f"circuit {plan.circuit}", plan.circuit_digest, circuit.circuit.digest)
    demand("KM502", "the model's inventory", plan.inventory_digest, inventory.digest)
    for decision in plan.decisions:
        item = registry.maps.get(decision.provider or "")
        contract = registry.contracts.get(decision.group)
        demand("KM503", f"map {decision.provider}", decision.map_digest, item.digest if item is not None else "none")
        if item is not None and not item.executable:
            found.append(not_executable(item, registry.sources.get(item.id)))
        actual = contract.digest if contract is not None else "none"
        demand("KM504", f"contract {decision.group}", decision.contract_digest, actual)
    found += _host_problems(plan, registry, host)
    current = switches_set(kill_switches(registry), environ)
    planned = set(plan.policy.kill_switches)
    for name in sorted(planned.symmetric_difference(current)):
        state = "set" if name in current else "not set"
        found.append(
            Diagnostic("KM506", f"kill switch {name} is {state} now and was not so in the plan", help="resolve again")
        )
    return list(dict.fromkeys(found))


def _host_problems(plan: Plan, registry: Registry, host: Host) -> list[Diagnostic]:
    """Demands what the selected providers and their enabled variants need, not an equal host."""
    found: list[Diagnostic] = []
    features = set(host.isa)
    for decision in plan.decisions:
        item = registry.maps.get(decision.provider or "")
        if item is None:
            continue
        needs = set(item.requires.isa)
        for variant in decision.variants:
            declared = item.impl.by_name.get(variant.name)
            if variant.enabled and declared is not None:
                needs |= set(declared.requires)
        if missing := sorted(needs - features):
            message = f"{item.id} needs {', '.join(missing)}, which this host lacks"
            found.append(Diagnostic("KM505", message, help=f"the plan was made for host {plan.host.name}"))
        device = item.requires.device
        if device is not Device.ANY and device.value not in host.devices:
            found.append(Diagnostic("KM505", f"{item.id} needs device {device.value}, which this host lacks"))
    return found


@dataclass(slots=True)
class _Binder:
    plan: Plan
    registry: Registry
    inventory: Inventory
    host: Host
    progress: Progress
    check_weights: bool
    problems: list[Diagnostic] = field(default_factory=list)
    prepared: dict[tuple[str, tuple[int, int] | None, str], Any] = field(default_factory=dict)
    sizes: dict[tuple[str, tuple[int, int] | None, str], int] = field(default_factory=dict)
    raw: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    warmed: list[Warmed] = field(default_factory=list)

    def run(self, elaborated: Elaborated) -> dict[Phase, tuple[BoundOp, ...]]:
        built = self.build_all(elaborated)
        order = {id(instance): index for index, instance in enumerate(elaborated.instances)}
        steps: dict[Phase, list[tuple[int, BoundOp]]] = {phase: [] for phase in self.plan.phases}
        if self.problems:
            return {}
        cases = cases_of(elaborated)
        total = sum(len(case.instances) for case in cases)
        done = 0
        for case, (decision, item, variants) in zip(cases, built, strict=True):
            for instance in case.instances:
                self.progress(f"weights of {decision.name}", done, total)
                weights = self._weights(instance, item)
                bound = BoundOp(instance, case.phase, decision, item, variants, weights)
                steps[case.phase].append((order[id(instance)], bound))
                done += 1
        self.progress("bound", total, total)
        return {phase: tuple(op for _, op in sorted(ops, key=lambda pair: pair[0])) for phase, ops in steps.items()}

    def build_all(self, elaborated: Elaborated) -> list[tuple[Decision, KernelMap, tuple[BoundVariant, ...]]]:
        """Decision, map and code of every case, in the plan's order."""
        cases = cases_of(elaborated)
        built: list[tuple[Decision, KernelMap, tuple[BoundVariant, ...]]] = []
        if len(cases) != len(self.plan.decisions):
            self.problems.append(Diagnostic("KM507", "the plan does not cover the circuit's ops"))
            return built
        for index, (case, decision) in enumerate(zip(cases, self.plan.decisions, strict=True)):
            if (case.shared.op.name, case.phase, case.shared.group) != (decision.name, decision.phase, decision.group):
                self.problems.append(
                    Diagnostic("KM507", f"the plan decides {decision.key} where the circuit runs {case.shared.op.name}")
                )
                continue
            self.progress(f"building {decision.provider}", index, len(cases))
            item = self.registry.maps[str(decision.provider)]
            variants = self._variants(case.shared, decision, item)
            built.append((decision, item, variants))
        return built

    def _variants(self, shared: SharedOp, decision: Decision, item: KernelMap) -> tuple[BoundVariant, ...]:
        found = []
        for planned in decision.variants:
            declared = item.impl.by_name[planned.name]
            if not planned.enabled:
                continue
            spec = build_spec(item, shared, planned.name, tuple(sorted(self.host.isa)))
            started = time.perf_counter()
            try:
                run = load_runner(item, shared.contract, spec)
            except KernelmapError as error:
                self.problems.extend(error.diagnostics)
                continue
            self.warmed.append(Warmed(item.id, planned.name, time.perf_counter() - started))
            found.append(BoundVariant(planned, declared.guards, run))
        return tuple(found)

    def _weights(self, instance: OpInstance, item: KernelMap) -> dict[str, Any]:
        hooks = {port: hook for hook in item.weight_preparation for port in hook.weights}
        found: dict[str, Any] = {}
        for port, weight in instance.weights.items():
            hook = hooks.get(port)
            found[port] = self._array(weight) if hook is None else self._prepare(weight, hook, instance)
        return found

    def _array(self, weight: BoundWeight) -> np.ndarray[Any, Any]:
        name = weight.tensor.name
        if name not in self.raw:
            self.raw[name] = open_tensor(self.inventory, name)
            if self.check_weights:
                self.problems += weight_problems(name, weight.tensor.format, self.raw[name])
        array = self.raw[name]
        return array if weight.rows is None else array[..., weight.rows[0] : weight.rows[1], :]

    def _prepare(self, weight: BoundWeight, hook: WeightPreparation, instance: OpInstance) -> Any:
        key = (weight.tensor.name, weight.rows, hook.prepared_format)
        if key not in self.prepared:
            function = load_function(hook.function)
            try:
                made = function(
                    self._array(weight),
                    source_format=weight.tensor.format,
                    prepared_format=hook.prepared_format,
                    shape=weight.shape,
                )
            except (ValueError, MemoryError) as error:
                message = f"preparing {weight.tensor.name} as {hook.prepared_format}: {error or 'no memory'}"
                raise BindError(Diagnostic("KM512", message)) from error
            size = int(made.nbytes)
            declared = hook.prepared_bytes.evaluate(instance.shared.dims)
            if size != declared:
                message = f"{hook.function} made {size} bytes of {weight.tensor.name}, and the map declares {declared}"
                raise BindError(Diagnostic("KM508", message))
            self.prepared[key], self.sizes[key] = made, size
        return self.prepared[key]


def build_spec(item: KernelMap, shared: SharedOp, variant: str, isa: tuple[str, ...]) -> BuildSpec:
    """The facts that a builder of ``item`` is given for one op."""
    prepared = {port: hook.prepared_format for hook in item.weight_preparation for port in hook.weights}
    return BuildSpec(
        provider=item.id,
        group=shared.group,
        op=shared.op.op,
        variant=variant,
        dtypes=dict(shared.dtypes),
        dims=dict(shared.dims),
        params=dict(shared.params),
        prepared=prepared,
        arithmetic=dict(shared.contract.arithmetic),
        isa=isa,
    )


def load_function(path: str) -> Callable[..., Any]:
    """The function of a ``module:function`` path. Raises BindError if it cannot be imported."""
    module, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) and error.name else ""
        extra = _EXTRAS.get(missing.partition(".")[0], "")
        help = f"install the extra that brings it: pip install 'kernelmap[{extra}]'" if extra else ""
        raise BindError(Diagnostic("KM509", f"cannot load {path}: {error}", help=help)) from error
    if not callable(found):
        raise BindError(Diagnostic("KM509", f"{path} is not callable"))
    return found  # type: ignore[no-any-return]


def load_runner(item: KernelMap, contract: Contract, spec: BuildSpec) -> Runner:
    """Builds a variant and compares its parameter names with the contract's ports. Raises BindError if they differ."""
    if item.impl.function is None:
        raise BindError(not_executable(item))
    variant = item.impl.by_name[spec.variant]
    run = load_function(variant.function or item.impl.function)(spec)
    wanted = [*contract.ports, *(scratch.name for scratch in item.scratch), "threads"]
    actual = list(inspect.signature(run).parameters)
    if actual != wanted:
        message = f"{item.id} ({spec.variant}) takes other parameters than its contract's ports"
        raise BindError(Diagnostic("KM510", message, expected=", ".join(wanted), found=", ".join(actual)))
    return run  # type: ignore[no-any-return]
