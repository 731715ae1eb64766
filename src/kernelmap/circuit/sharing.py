"""One op against its contract: ports, dtypes, shapes, dims and params."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kernelmap.circuit.facts import Facts
from kernelmap.circuit.instances import BoundWeight, Dim, SharedOp, Value
from kernelmap.contracts import alignment
from kernelmap.errors import Diagnostic, nearest
from kernelmap.expressions import Env, ExpressionError, SizeExpr
from kernelmap.models.base import Scalar
from kernelmap.models.circuit import Op
from kernelmap.models.contract import Contract, Port
from kernelmap.templates import TemplateError, fill

Shape = tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class Bound:
    """What a layer gives to an op: everything that the shared part depends on."""

    weights: Mapping[str, BoundWeight]
    inputs: Mapping[str, Value]
    state: Mapping[str, tuple[str, Shape]]
    """State port to dtype and shape."""
    dims: Mapping[str, Dim]
    params: Mapping[str, Scalar]


@dataclass(slots=True)
class Sharer:
    """Checks one op in one layer; ``result`` is None when something was wrong (and reported)."""

    facts: Facts
    contracts: Mapping[str, Contract]
    op: Op
    block: str
    where: str
    layer: int | None
    bound: Bound
    dims: dict[str, int] = field(default_factory=dict)
    dynamic: dict[str, Dim] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    """Values of the contract's dtype variables."""
    deferred: list[tuple[SizeExpr, Dim, str, str, str]] = field(default_factory=list)
    """Compound sizes, checked when all plain dims are bound: (wanted, actual, what, port, JSON pointer)."""

    def run(self) -> SharedOp | None:
        """The shared op, or None with the problems in ``facts``."""
        before = len(self.facts.problems)
        contract = self._contract()
        if contract is None:
            return None
        if not self._ports(contract):
            return None
        for name, value in self.bound.dims.items():
            self._bind(contract, name, value, f"dims.{name}", "/dims")
        self._inputs(contract)
        self._compound()
        self._all_dims(contract)
        params = self._params(contract)
        if len(self.facts.problems) > before:
            return None
        self._limits(contract, params)
        outputs = {port.name: (self._dtype(port), self._shape(port)) for port in contract.outputs}
        self.dtypes |= {name: dtype for name, (dtype, _) in outputs.items()}
        if len(self.facts.problems) > before:
            return None
        return SharedOp(
            self.op, self.block, self.where, contract.equivalence_group, contract, dict(sorted(self.dims.items())),
            dict(self.dynamic), params, self.dtypes, outputs,
        )  # fmt: skip

    def report(self, code: str, message: str, part: str = "", **extra: str | tuple[str, ...]) -> None:
        """Adds an error that names op and layer, placed in the circuit."""
        at = f" layer {self.layer}" if self.layer is not None else ""
        text = f"{self.op.name}{at}: {message}"
        self.facts.problems.append(
            Diagnostic(code, text, place=self.facts.source.place(self.where + part), **extra)  # type: ignore[arg-type]
        )

    def _contract(self) -> Contract | None:
        formats = {name: weight.tensor.format for name, weight in self.bound.weights.items()}
        try:
            group = fill(self.op.equivalence_group, formats, self.facts.options)
        except TemplateError as error:
            self.report("KM307", f"{error}{self._tensors()}", "/equivalence_group")
            return None
        contract = self.contracts.get(group)
        if contract is None:
            near = nearest(group, (item.equivalence_group for item in self.contracts.values() if item.op == self.op.op))
            help = "no such contract" if not near else "nearest groups are listed; none of them is taken instead"
            self.report(
                "KM451", f"no contract for group {group}{self._tensors()}", "/equivalence_group", near=near, help=help
            )
        elif contract.op != self.op.op:
            self.report("KM309", f"group {group} is a contract of op {contract.op}, not {self.op.op}", "/op")
            return None
        return contract

    def _tensors(self) -> str:
        stored = [f"{w.tensor.name} is {w.tensor.format}" for w in self.bound.weights.values()]
        return f" ({', '.join(stored)})" if stored else ""

    def _ports(self, contract: Contract) -> bool:
        sides: tuple[tuple[str, Mapping[str, object], tuple[Port, ...]], ...] = (
            ("inputs", self.bound.inputs, contract.inputs),
            ("weights", self.bound.weights, contract.weights),
            ("state", self.bound.state, contract.state),
        )
        good = True
        for side, given, ports in sides:
            names = {port.name for port in ports}
            for name in sorted(set(getattr(self.op, side)) - names):
                good = False
                self.report(
                    "KM309",
                    f"{contract.equivalence_group} has no {side} port {name!r}",
                    f"/{side}/{name}",
                    near=nearest(name, names),
                )
            for port in ports:
                if port.name not in given and not port.optional:
                    good = False
                    self.report(
                        "KM309", f"{side} port {port.name!r} is not bound", f"/{side}" if getattr(self.op, side) else ""
                    )
        outputs = {port.name for port in contract.outputs}
        for name in sorted(set(self.op.outputs) - outputs):
            good = False
            self.report(
                "KM309",
                f"{contract.equivalence_group} has no output {name!r}",
                f"/outputs/{name}",
                near=nearest(name, outputs),
            )
        for name in sorted(set(self.op.dims) - set(contract.dims)):
            good = False
            self.report(
                "KM309",
                f"{contract.equivalence_group} has no dim {name!r}",
                f"/dims/{name}",
                near=nearest(name, contract.dims),
            )
        return good

    def _inputs(self, contract: Contract) -> None:
        for port in contract.weights:
            weight = self.bound.weights.get(port.name)
            if weight is not None:
                about = f"tensor {weight.tensor.name}"
                self._check_dtype(port, weight.tensor.format, about, f"/weights/{port.name}")
                self._unify(contract, port, weight.shape, about, f"/weights/{port.name}")
        for port in contract.inputs:
            value = self.bound.inputs.get(port.name)
            if value is not None:
                self._check_dtype(port, value.dtype, f"value {value.key}", f"/inputs/{port.name}")
                self._unify(contract, port, value.shape, f"value {value.key}", f"/inputs/{port.name}")
        for state in contract.state:
            given = self.bound.state.get(state.name)
            if given is not None:
                about = f"state {self.op.state[state.name]}"
                self._check_dtype(state, given[0], about, f"/state/{state.name}")
                self._unify(contract, state, given[1], about, f"/state/{state.name}")

    def _check_dtype(self, port: Port, actual: str, about: str, part: str) -> None:
        self.dtypes[port.name] = actual
        wanted = port.dtype
        allowed: tuple[str, ...] = (wanted,)
        if wanted[0].isupper():
            self.types.setdefault(wanted, actual)
            allowed = (self.types[wanted],)
            contract = self.contracts[fill(self.op.equivalence_group, self._formats(), self.facts.options)]
            if actual not in contract.dtype_vars.get(wanted, ()):
                allowed = contract.dtype_vars.get(wanted, ())
        if actual not in allowed:
            kind = "stored as" if about.startswith("tensor") else "of dtype"
            code = "KM310" if about.startswith("tensor") else "KM311"
            self.report(code, f"{about} is {kind} {actual}, and port {port.name!r} takes {' or '.join(allowed)}", part)

    def _formats(self) -> dict[str, str]:
        return {name: weight.tensor.format for name, weight in self.bound.weights.items()}

    def _unify(self, contract: Contract, port: Port, actual: Shape, about: str, part: str) -> None:
        if len(actual) != len(port.shape):
            shown = ", ".join(map(str, port.shape))
            self.report("KM312", f"{about} has shape {list(actual)}, and port {port.name!r} takes [{shown}]", part)
            return
        for wanted, size in zip(port.shape, actual, strict=True):
            if isinstance(wanted, int):
                if wanted != size:
                    self.report("KM312", f"{about}: size {size} where port {port.name!r} takes {wanted}", part)
            elif str(wanted) in contract.dims:
                self._bind(contract, str(wanted), size, about, part)
            else:
                self.deferred.append((wanted, size, about, port.name, part))

    def _compound(self) -> None:
        for wanted, size, about, port, part in self.deferred:
            if not wanted.names <= self.dims.keys():
                continue  # the missing dim is reported by itself
            value = self._size(wanted, part)
            if value is not None and value != size:
                self.report("KM312", f"{about}: size {size} where port {port!r} takes {wanted} = {value}", part)

    def _bind(self, contract: Contract, name: str, size: Dim, about: str, part: str) -> None:
        if name in contract.dynamic_dims:
            known: Dim | None = self.dynamic.setdefault(name, size)
        elif isinstance(size, str):
            self.report("KM313", f"{about}: dim {name} is static, and {size!r} is known only at run time", part)
            return
        else:
            known = self.dims.setdefault(name, size)
        if known != size:
            self.report("KM312", f"{about}: dim {name} is {size} here and {known} elsewhere in this op", part)

    def _all_dims(self, contract: Contract) -> None:
        for name in sorted(contract.static_dims - self.dims.keys()):
            self.report(
                "KM313",
                f"nothing gives dim {name} ({contract.dims[name]})",
                "",
                help=f'add "dims": {{"{name}": …}} to the op',
            )
        for name in contract.dynamic_dims:
            if name not in self.dynamic:
                self.report(
                    "KM313",
                    f"nothing gives dynamic dim {name} ({contract.dims[name]})",
                    "",
                    help=f'bind "{name}" in the op\'s dims',
                )

    def _params(self, contract: Contract) -> dict[str, Scalar]:
        params: dict[str, Scalar] = {}
        for name in sorted(set(self.bound.params) - set(contract.params_by_name)):
            near = nearest(name, contract.params_by_name)
            self.report(
                "KM309", f"{contract.equivalence_group} has no parameter {name!r}", f"/params/{name}", near=near
            )
        for param in contract.params:
            value = self.bound.params.get(param.name, param.default)
            if value is None:
                self.report(
                    "KM309",
                    f"parameter {param.name!r} is not given and has no default",
                    "/params" if self.op.params else "",
                )
            elif why := param.refusal(value):
                self.report("KM316", why, f"/params/{param.name}")
            else:
                params[param.name] = float(value) if param.type == "float" else value
        return params

    def _limits(self, contract: Contract, params: Mapping[str, Scalar]) -> None:
        for name, multiple in alignment(contract).items():
            if self.dims[name] % multiple:
                self.report("KM314", f"dim {name} = {self.dims[name]} is no multiple of {multiple}{self._tensors()}")
        env = Env(names={**self.dims, **params}, config={}, options={}, layer=None, has=_nothing, shape=_no_shape)
        for predicate in contract.requires:
            try:
                holds = predicate.evaluate(env)
            except ExpressionError as error:
                self.report("KM315", f"the contract requires {predicate}: {error.message}")
                continue
            if not holds:
                given = ", ".join(f"{name} = {env.names[name]}" for name in sorted(predicate.names))
                self.report("KM315", f"the contract requires {predicate}, and {given}")

    def _dtype(self, port: Port) -> str:
        return self.types.get(port.dtype, port.dtype) if port.dtype[0].isupper() else port.dtype

    def _shape(self, port: Port) -> Shape:
        shape: list[Dim] = []
        for item in port.shape:
            if isinstance(item, int):
                shape.append(item)
            elif str(item) in self.dynamic:
                shape.append(self.dynamic[str(item)])
            else:
                value = self._size(item, "")
                shape.append(value if value is not None else 0)
        return tuple(shape)

    def _size(self, expr: SizeExpr, part: str) -> int | None:
        try:
            return expr.evaluate(self.dims)
        except ExpressionError as error:
            self.report(error.code, f"{expr}: {error.message}", part)
            return None


def _nothing(_name: str) -> bool:
    return False


def _no_shape(_name: str) -> tuple[int, ...]:
    return ()
