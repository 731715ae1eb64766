"""Choosing and building the provider of one operation outside of any circuit, by the resolver itself.

The operation becomes a circuit of one op; `kernelmap.resolver.decide` runs the same checks and ranks as for a model.
Fail-closed: no eligible provider is an error that carries the decision record.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from threading import Lock

from kernelmap.bind import BoundOp, BoundVariant, build_spec, load_runner
from kernelmap.circuit.instances import Elaborated, OpInstance, SharedOp
from kernelmap.errors import Diagnostic, KernelmapError
from kernelmap.host import probe_host
from kernelmap.jsonsource import JsonSource, parse_json
from kernelmap.models.base import canonical_json
from kernelmap.models.circuit import Circuit
from kernelmap.models.contract import Contract
from kernelmap.models.host import Host
from kernelmap.models.inventory import Inventory
from kernelmap.models.kernel_map import KernelMap
from kernelmap.models.loading import validate
from kernelmap.models.plan import Decision
from kernelmap.models.policy import Policy
from kernelmap.policies import switches_set
from kernelmap.registry import Registry, load_registry
from kernelmap.resolver import decide, kill_switches
from kernelmap.vocabulary import Phase

_WHERE = "/blocks/body/ops/0"


class NoProviderError(KernelmapError):
    """No provider of the group is eligible, or two tie; ``decision`` has every provider with every reason."""

    def __init__(self, problems: Iterable[Diagnostic], decision: Decision) -> None:
        super().__init__(problems)
        self.decision = decision


@dataclass(frozen=True, slots=True)
class Request:
    """One operation as it is to run: hashable, and all that a choice depends on beside host and policy."""

    group: str
    phase: Phase
    device: str
    """torch's name of the device type: ``cpu``, ``cuda`` ..."""
    dtypes: tuple[tuple[str, str], ...]
    """Port and number type."""
    dims: tuple[tuple[str, int], ...]
    """Static dims of the contract."""


@dataclass(slots=True)
class Chooser:
    """Chooses and builds providers, each request once. Safe from several threads."""

    registry: Registry
    host: Host
    policy: Policy = field(default_factory=Policy)
    _bound: dict[Request, BoundOp] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The records of every choice made so far, in order."""
        return tuple(bound.decision for bound in self._bound.values())

    def bound(self, request: Request) -> BoundOp:
        """The provider, built. Raises NoProviderError, or BindError if its code cannot be loaded."""
        found = self._bound.get(request)
        if found is None:
            with self._lock:
                found = self._bound.get(request) or self._bind(request)
                self._bound[request] = found
        return found

    def _bind(self, request: Request) -> BoundOp:
        contract = self.registry.contracts[request.group]
        # The tensors' device alone counts: a provider for the CPU must not serve tensors of a GPU beside it.
        host = self.host.model_copy(update={"devices": (request.device,)})
        elaborated, source = _circuit_of_one(request, contract)
        resolution = decide(elaborated, source, self.registry, host, self.policy.normalised())
        (decision,) = resolution.decisions
        if resolution.problems:
            raise NoProviderError([replace(problem, place=None) for problem in resolution.problems], decision)
        (instance,) = elaborated.instances
        item = self.registry.maps[str(decision.provider)]
        variants = _variants(instance.shared, decision, item, tuple(sorted(self.host.isa)))
        return BoundOp(instance, request.phase, decision, item, variants, {})


@lru_cache(maxsize=1)
def default_chooser() -> Chooser:
    """The chooser of this process: shipped and installed maps, this machine, the environment's kill switches."""
    registry = load_registry()
    switches = switches_set(kill_switches(registry), os.environ)
    return Chooser(registry, probe_host(), Policy(kill_switches=switches))


def _variants(shared: SharedOp, decision: Decision, item: KernelMap, isa: tuple[str, ...]) -> tuple[BoundVariant, ...]:
    found = []
    for planned in decision.variants:
        if planned.enabled:
            run = load_runner(item, shared.contract, build_spec(item, shared, planned.name, isa))
            found.append(BoundVariant(planned, item.impl.by_name[planned.name].guards, run))
    return tuple(found)


def _circuit_of_one(request: Request, contract: Contract) -> tuple[Elaborated, JsonSource]:
    """A circuit with one op and no layer, elaborated for dims and dtypes that are known already."""
    value = {
        "schema_version": 1,
        "id": contract.op,
        "summary": "",
        "architectures": ["tensors"],
        "inputs": [{"name": port.name, "dtype": "fp32", "shape": []} for port in contract.inputs[:1]],
        "blocks": {
            "body": {
                "ops": [
                    {
                        "name": contract.op,
                        "op": contract.op,
                        "equivalence_group": request.group,
                        "phases": [request.phase.value],
                    }
                ]
            }
        },
        "header": "body",
        "outputs": [{"name": port.name, "value": port.name} for port in contract.outputs],
    }
    source = parse_json(canonical_json(value).encode(), "kernelmap.ops")
    circuit = validate(source, Circuit)
    shared = SharedOp(
        op=circuit.blocks["body"].ops[0],
        block="body",
        where=_WHERE,
        group=request.group,
        contract=contract,
        dims=dict(request.dims),
        dynamic={name: name for name in contract.dynamic_dims},
        params={},
        dtypes=dict(request.dtypes),
        outputs={},
    )
    instance = OpInstance(shared, None, {}, {}, {}, {})
    inventory = Inventory(schema_version=1, source="tensors", architecture="tensors", metadata={}, tensors=())
    return Elaborated(circuit, inventory, {}, 0, (instance,), {}, {}, {}), source
