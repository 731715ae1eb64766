"""Elaboration: walks init, header, layers and footer of a circuit for one inventory."""

from __future__ import annotations

import fnmatch
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field

from kernelmap.circuit.facts import Facts, facts_of
from kernelmap.circuit.instances import BoundWeight, Dim, Elaborated, OpInstance, SharedOp, StateInstance, Value
from kernelmap.circuit.phases import Makers
from kernelmap.circuit.sharing import Bound, Sharer
from kernelmap.circuit.weights import WeightBinder, tensor_name
from kernelmap.errors import Diagnostic, KernelmapError, nearest
from kernelmap.expressions import Env, ExpressionError, Predicate, ScalarExpr
from kernelmap.jsonsource import JsonSource
from kernelmap.models.base import Scalar
from kernelmap.models.circuit import CarryUpdate, Circuit, Op, ParamExpr, ValueRefs
from kernelmap.models.contract import Contract
from kernelmap.models.inventory import Inventory
from kernelmap.templates import TemplateError, fill

_POISON = Value("", "", ())
"""Stands for the output of an op that failed: its users stay silent, the failed op was reported."""


def elaborate(
    circuit: Circuit,
    source: JsonSource,
    inventory: Inventory,
    contracts: Mapping[str, Contract],
    options: Mapping[str, str] | None = None,
) -> Elaborated:
    """Op instances of every layer with their tensors, edges, dims and params.

    Raises KernelmapError with everything that is wrong, each problem placed in the circuit file.
    """
    elaborated, problems = try_elaborate(circuit, source, inventory, contracts, options)
    if problems or elaborated is None:
        raise KernelmapError(problems)
    return elaborated


def try_elaborate(
    circuit: Circuit,
    source: JsonSource,
    inventory: Inventory,
    contracts: Mapping[str, Contract],
    options: Mapping[str, str] | None = None,
) -> tuple[Elaborated | None, list[Diagnostic]]:
    """As `elaborate`, but returns the problems; the result is None if there are any."""
    facts = facts_of(circuit, source, inventory, options or {})
    if facts.problems:
        return None, facts.problems  # everything else would only repeat these
    walk = _Walk(facts, contracts)
    walk.run()
    return (None if facts.problems else walk.result()), facts.problems


@dataclass(slots=True)
class _Walk:
    facts: Facts
    contracts: Mapping[str, Contract]
    instances: list[OpInstance] = field(default_factory=list)
    inputs: dict[str, Value] = field(default_factory=dict)
    outputs: dict[str, Value] = field(default_factory=dict)
    states: dict[str, StateInstance] = field(default_factory=dict)
    state_kinds: dict[str, tuple[str, tuple[Dim, ...]]] = field(default_factory=dict)
    carried: dict[str, Value | tuple[Value, ...]] = field(default_factory=dict)
    init_scope: dict[str, Value] = field(default_factory=dict)
    lists: dict[str, tuple[str, ...]] = field(default_factory=dict)
    shared: dict[Hashable, SharedOp | None] = field(default_factory=dict)
    makers: Makers = field(default_factory=Makers)
    binder: WeightBinder = field(init=False)
    reported: set[tuple[str, str]] = field(default_factory=set)
    excused: set[str] = field(default_factory=set)
    """Outputs whose op failed: that was reported."""

    @property
    def circuit(self) -> Circuit:
        return self.facts.circuit

    def run(self) -> None:
        self.binder = WeightBinder(self.facts)
        self._session_inputs()
        self._declare_states()
        self.carried |= {item.name: () for item in self.circuit.carry if item.kind == "list"}
        circuit = self.circuit
        if circuit.init is not None:
            scope = self._scope(None)
            self._block(circuit.init, "init", None, scope)
            self.init_scope |= {f"init.{name}": value for name, value in scope.items()}
        if circuit.header is not None:
            self._outside(circuit.header, "header")
        for layer in range(self.facts.layer_count):
            self._layer(layer)
        if circuit.footer is not None:
            self._outside(circuit.footer, "footer")
        self._session_outputs()
        self.binder.report_missing()
        self._unread()

    def result(self) -> Elaborated:
        facts = self.facts
        return Elaborated(
            facts.circuit, facts.inventory, facts.options, facts.layer_count, tuple(self.instances),
            self.inputs, self.outputs, self.states, self.lists,
        )  # fmt: skip

    # What the caller gives and gets

    def _session_inputs(self) -> None:
        for index, item in enumerate(self.circuit.inputs):
            where = f"/inputs/{index}"
            kind = self._kind(item.dtype, item.shape, where)
            layers: Iterator[int | None] = iter(range(self.facts.layer_count) if item.scope == "layer" else (None,))
            for layer in layers:
                name = item.name if layer is None else f"{item.name}/{layer}"
                self.inputs[name] = Value(f"input/{name}", *kind)

    def _session_outputs(self) -> None:
        for index, item in enumerate(self.circuit.outputs):
            if item.scope == "session" and item.name not in self.outputs and item.name not in self.excused:
                self.facts.report(
                    "KM317", f"no block outside the layers makes {item.value!r}", f"/outputs/{index}/value"
                )

    def _take_outputs(self, layer: int | None, scope: Mapping[str, Value]) -> None:
        wanted = "session" if layer is None else "layer"
        for item in self.circuit.outputs:
            value = _value_in(scope, item.value)
            if item.scope != wanted or value is None:
                continue
            if value is _POISON:
                self.excused.add(item.name)
            else:
                self.outputs[item.name if layer is None else f"{item.name}/{layer}"] = value

    def _declare_states(self) -> None:
        for index, item in enumerate(self.circuit.state):
            self.state_kinds[item.name] = self._kind(item.dtype, item.shape, f"/state/{index}")

    def _kind(self, dtype: str, shape: tuple[int | ScalarExpr, ...], where: str) -> tuple[str, tuple[Dim, ...]]:
        try:
            dtype = fill(dtype, {}, self.facts.options)
        except TemplateError as error:
            self.facts.report("KM307", str(error), f"{where}/dtype")
        sizes: list[Dim] = []
        for axis, item in enumerate(shape):
            if not isinstance(item, int) and str(item) in self.circuit.dynamic_dims:
                sizes.append(str(item))
            else:
                sizes.append(self.facts.scalar(item, self.facts.base, f"{where}/shape/{axis}") or 0)
        return dtype, tuple(sizes)

    # Blocks

    def _scope(self, layer: int | None) -> dict[str, Value]:
        """Names that a layer begins with: inputs, carried values, what init made."""
        scope = dict(self.init_scope)
        for name, value in self.inputs.items():
            base, _, index = name.partition("/")
            if not index:
                scope[base] = value
        if layer is not None:
            for item in self.circuit.inputs:
                if item.scope == "layer":
                    scope[item.name] = self.inputs[f"{item.name}/{layer}"]
        return scope

    def _outside(self, name: str, label: str) -> None:
        scope = self._scope(None)
        self._block(name, label, None, scope)
        self._take_outputs(None, scope)

    def _layer(self, layer: int) -> None:
        assert self.circuit.layers is not None
        env = self.facts.env(layer)
        for index, rule in enumerate(self.circuit.layers.rules):
            if rule.when is None or self._holds(rule.when, env, f"/layers/rules/{index}/when"):
                scope = self._scope(layer)
                for name in rule.sequence:
                    self._block(name, f"layer{layer}", layer, scope)
                self._take_outputs(layer, scope)
                return
        self._once("KM318", f"no rule says what layer {layer} is", "/layers/rules")

    def _block(self, name: str, label: str, layer: int | None, scope: dict[str, Value]) -> None:
        block = self.circuit.blocks.get(name)
        if block is None:
            near = nearest(name, self.circuit.blocks)
            self._once("KM318", f"there is no block {name!r}", "/blocks", near=near)
            return
        for item, value in self.carried.items():
            scope[f"carry.{item}"] = self._stacked(item, value, label) if isinstance(value, tuple) else value
        env = self.facts.env(layer)
        for index, op in enumerate(block.ops):
            where = f"/blocks/{name}/ops/{index}"
            if op.when is None or self._holds(op.when, env, f"{where}/when"):
                self._op(op, name, where, label, layer, env, scope)
        for item, update in block.carry.items():
            self._carry(name, item, update, scope)

    def _stacked(self, name: str, entries: tuple[Value, ...], label: str) -> Value:
        if not entries:
            return Value(f"carry/{name}/{label}", *self._empty_list(name))
        key = f"carry/{name}/{len(entries)}"
        self.lists[key] = tuple(entry.key for entry in entries)
        return Value(key, entries[0].dtype, (len(entries), *entries[0].shape))

    def _empty_list(self, name: str) -> tuple[str, tuple[Dim, ...]]:
        index, item = next((i, c) for i, c in enumerate(self.circuit.carry) if c.name == name)
        dtype, shape = self._kind(item.dtype, item.shape, f"/carry/{index}")
        return dtype, (0, *shape)

    def _carry(self, block: str, name: str, update: ValueRefs | CarryUpdate, scope: Mapping[str, Value]) -> None:
        where = f"/blocks/{block}/carry/{name}"
        declared = next(((i, c) for i, c in enumerate(self.circuit.carry) if c.name == name), None)
        if declared is None:
            near = nearest(name, (item.name for item in self.circuit.carry))
            self._once("KM319", f"the circuit carries no {name!r}", where, near=near)
            return
        index, item = declared
        appends = isinstance(update, CarryUpdate)
        if appends != (item.kind == "list"):
            self._once(
                "KM319", f"{name} is a carried {item.kind}: {'append to it' if not appends else 'set it'}", where
            )
            return
        value = self._find(update.append if isinstance(update, CarryUpdate) else update, scope, block, where)
        if value is None or value is _POISON:
            return
        kind = self._kind(item.dtype, item.shape, f"/carry/{index}")
        if (value.dtype, value.shape) != kind:
            shown = f"{value.dtype} {list(value.shape)}"
            self._once("KM312", f"{value.key} is {shown}, and carried {name} is {kind[0]} {list(kind[1])}", where)
            return
        before = self.carried.get(name, ())
        self.carried[name] = (*before, value) if isinstance(before, tuple) and item.kind == "list" else value

    # Ops

    def _op(
        self, op: Op, block: str, where: str, label: str, layer: int | None, env: Env, scope: dict[str, Value]
    ) -> None:
        weights = self._weights(op, layer, where)
        inputs = {port: self._find(refs, scope, op.name, f"{where}/inputs/{port}") for port, refs in op.inputs.items()}
        state = {port: self._state(name, layer, f"{where}/state/{port}") for port, name in op.state.items()}
        broken = weights is None or any(value is None or value is _POISON for value in inputs.values())
        shared: SharedOp | None = None
        if not broken and all(state.values()) and weights is not None:
            found = {port: value for port, value in inputs.items() if value is not None}
            for port, key, phases in self.makers.gaps(found, op.phases, self.lists):
                self._once("KM317", f"{op.name}: nothing makes {key} in {phases}", f"{where}/inputs/{port}")
            shared = self._share(op, block, where, layer, env, weights, found, state)
            if shared is not None:
                outputs = {port: Value(f"{label}/{op.name}.{port}", *kind) for port, kind in shared.outputs.items()}
                keys = {port: key for port, key in state.items() if key is not None}
                self.makers.made(outputs, op.phases)
                self.instances.append(OpInstance(shared, layer, weights, found, outputs, keys))
                self._name_outputs(op, outputs, scope, where)
        if shared is None:
            for alias in op.outputs.values():
                scope.setdefault(alias, _POISON)
            scope.setdefault(op.name, _POISON)

    def _name_outputs(self, op: Op, outputs: Mapping[str, Value], scope: dict[str, Value], where: str) -> None:
        names = {f"{op.name}.{port}": value for port, value in outputs.items()}
        names |= {alias: outputs[port] for port, alias in op.outputs.items()}
        for name, value in names.items():
            if name in scope:
                self._once("KM319", f"{name!r} is made twice in one layer", f"{where}/outputs")
            scope[name] = value

    def _share(
        self, op: Op, block: str, where: str, layer: int | None, env: Env, weights: Mapping[str, BoundWeight],
        inputs: Mapping[str, Value], state: Mapping[str, str | None],
    ) -> SharedOp | None:  # fmt: skip
        dims: dict[str, Dim] = {}
        for name, item in op.dims.items():
            if not isinstance(item, int) and str(item) in self.circuit.dynamic_dims:
                dims[name] = str(item)
                continue
            size = self.facts.scalar(item, env, f"{where}/dims/{name}")
            if size is None:
                return None
            dims[name] = size
        params = self._params(op, env, where)
        if params is None:
            return None
        kinds = {port: self.state_kinds[op.state[port]] for port in state}
        key = (
            where,
            tuple((port, w.tensor.format, w.shape) for port, w in weights.items()),
            tuple((port, v.dtype, v.shape) for port, v in inputs.items()),
            tuple(kinds.items()),
            tuple(dims.items()),
            tuple(params.items()),
        )
        if key not in self.shared:
            bound = Bound(weights, inputs, kinds, dims, params)
            self.shared[key] = Sharer(self.facts, self.contracts, op, block, where, layer, bound).run()
        return self.shared[key]

    def _weights(self, op: Op, layer: int | None, where: str) -> dict[str, BoundWeight] | None:
        bound: dict[str, BoundWeight] = {}
        good = True
        for port, binding in op.weights.items():
            weight = self.binder.bind(binding, layer, f"{where}/weights/{port}")
            if weight is not None:
                bound[port] = weight
            elif isinstance(binding, str) or not binding.optional:
                good = False
        return bound if good else None

    def _params(self, op: Op, env: Env, where: str) -> dict[str, Scalar] | None:
        params: dict[str, Scalar] = {}
        for name, item in op.params.items():
            if not isinstance(item, ParamExpr):
                params[name] = item
                continue
            try:
                params[name] = item.expr.evaluate(env)
            except ExpressionError as error:
                self._once(error.code, f"{item.expr}: {error.message}", f"{where}/params/{name}")
                return None
        return params

    def _state(self, name: str, layer: int | None, where: str) -> str | None:
        item = next((state for state in self.circuit.state if state.name == name), None)
        if item is None or (item.scope == "layer" and layer is None):
            near = nearest(name, self.state_kinds)
            message = f"the circuit has no state {name!r}" if item is None else f"state {name!r} belongs to layers"
            self._once("KM319", message, where, near=near)
            return None
        key = f"state/{name}" if item.scope == "session" else f"state/{name}/{layer}"
        if key not in self.states:
            dtype, shape = self.state_kinds[name]
            at = None if item.scope == "session" else layer
            self.states[key] = StateInstance(key, name, at, dtype, shape, item.update)
        return key

    def _find(self, refs: ValueRefs, scope: Mapping[str, Value], user: str, where: str) -> Value | None:
        names = (refs,) if isinstance(refs, str) else refs
        for name in names:
            value = _value_in(scope, name)
            if value is not None:
                return value
        near = nearest(names[-1], scope)
        self._once("KM317", f"{user}: nothing makes {' or '.join(map(repr, names))} here", where, near=near)
        return None

    def _holds(self, predicate: Predicate, env: Env, where: str) -> bool:
        try:
            return predicate.evaluate(env)
        except ExpressionError as error:
            self._once(error.code, f"{predicate}: {error.message}", where)
            return False

    def _once(self, code: str, message: str, where: str, near: tuple[str, ...] = ()) -> None:
        """Reports what every layer would repeat once for each place."""
        if (code, where) not in self.reported:
            self.reported.add((code, where))
            self.facts.report(code, message, where, near=near)

    # Tensors that no op reads

    def _unread(self) -> None:
        if self.circuit.partial or self.facts.problems:
            return
        unread = [name for name in self.facts.tensors if name not in self.binder.read]
        ignored = {tensor_name(p, n) for p in self.circuit.ignores for n in range(self.facts.layer_count)}
        ignored |= set(self.circuit.ignores)
        wild = [name for name in ignored if "*" in name]
        for name in unread:
            if name not in ignored and not any(fnmatch.fnmatchcase(name, pattern) for pattern in wild):
                help = (
                    "read it, list it in ignores, or mark the circuit partial: silently ignored weights change results"
                )
                self.facts.report(
                    "KM320", f"no op reads tensor {name}", "/ignores" if self.circuit.ignores else "", help=help
                )


def _value_in(scope: Mapping[str, Value], name: str) -> Value | None:
    """The value of a name; the poison for any output of an op that failed; None if nothing makes it."""
    found = scope.get(name)
    return _POISON if found is None and scope.get(name.partition(".")[0]) is _POISON else found
