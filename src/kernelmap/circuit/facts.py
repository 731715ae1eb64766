"""What a circuit knows about one model: config values, options, dims, and the environment of its expressions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kernelmap.errors import Diagnostic, nearest
from kernelmap.expressions import Env, ExpressionError, ScalarExpr
from kernelmap.jsonsource import JsonSource
from kernelmap.models.base import Scalar
from kernelmap.models.circuit import Circuit, ConfigEntry
from kernelmap.models.inventory import Inventory, TensorInfo

MAX_LAYERS = 10_000
ConfigValue = Scalar | tuple[Scalar, ...]
_TYPES: Mapping[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "bool": (bool,), "str": (str,)}


@dataclass(slots=True)
class Facts:
    """Config, options and dims of a circuit for one inventory, with the problems met while finding them."""

    circuit: Circuit
    source: JsonSource
    inventory: Inventory
    options: Mapping[str, str]
    tensors: Mapping[str, TensorInfo]
    config: dict[str, ConfigValue] = field(default_factory=dict)
    dims: dict[str, int] = field(default_factory=dict)
    layer_count: int = 0
    problems: list[Diagnostic] = field(default_factory=list)
    base: Env = field(init=False)

    def env(self, layer: int | None) -> Env:
        """The environment of expressions in one layer, or outside of all."""
        return replace(self.base, layer=layer)

    def report(self, code: str, message: str, where: str, *, near: tuple[str, ...] = (), help: str = "") -> None:
        """Adds an error placed in the circuit file."""
        self.problems.append(Diagnostic(code, message, place=self.source.place(where), near=near, help=help))

    def scalar(self, item: int | ScalarExpr, env: Env, where: str) -> int | None:
        """A whole number of the circuit; None, with a problem reported, if it is none."""
        if isinstance(item, int):
            return item
        try:
            value = item.evaluate(env)
        except ExpressionError as error:
            self.report(error.code, f"{item}: {error.message}", where)
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            self.report("KM306", f"{item} is {value!r}, not a whole number from 0 up", where)
            return None
        return value


def facts_of(
    circuit: Circuit, source: JsonSource, inventory: Inventory, options: Mapping[str, str], *, with_tensors: bool = True
) -> Facts:
    """Reads config from the inventory's metadata, checks options, evaluates dims and the number of layers.

    ``with_tensors`` False leaves out dims that depend on tensors: for an inventory that has none yet.
    """
    tensors = {tensor.name: tensor for tensor in inventory.tensors}
    facts = Facts(circuit, source, inventory, _options(circuit, options), tensors)
    _unknown_options(facts, options)
    facts.base = Env(
        names=facts.dims,
        config=facts.config,
        options=facts.options,
        layer=None,
        has=lambda name: name in tensors,
        shape=lambda name: tensors[name].shape if name in tensors else (),
    )
    if inventory.architecture not in circuit.architectures:
        served = ", ".join(circuit.architectures)
        facts.report(
            "KM302", f"serves {served}, not a model of architecture {inventory.architecture!r}", "/architectures"
        )
    for name, entry in circuit.config.items():
        if not entry.array:
            _config(facts, name, entry)
    if circuit.layers is not None and not facts.problems:
        count = facts.scalar(circuit.layers.count, facts.base, "/layers/count") or 0
        if count > MAX_LAYERS:  # from metadata, which may be hostile: a loop over 2^40 layers would never end
            facts.report("KM306", f"{count} layers, and at most {MAX_LAYERS} are taken", "/layers/count")
            count = 0
        facts.layer_count = count
    for name, entry in circuit.config.items():
        if entry.array:
            _config(facts, name, entry)
    for name, item in circuit.dims.items():
        if isinstance(item, ScalarExpr) and (
            item.config_names - facts.config.keys() or (item.tensors and not with_tensors)
        ):
            continue  # a config value that is missing was reported; tensors are not there yet
        value = facts.scalar(item, facts.base, f"/dims/{name}")
        if value is not None:
            facts.dims[name] = value
    return facts


def _options(circuit: Circuit, chosen: Mapping[str, str]) -> Mapping[str, str]:
    return {name: chosen.get(name, option.default) for name, option in circuit.options.items()}


def _unknown_options(facts: Facts, chosen: Mapping[str, str]) -> None:
    for name, value in chosen.items():
        option = facts.circuit.options.get(name)
        if option is None:
            near = nearest(name, facts.circuit.options)
            facts.report("KM303", f"circuit {facts.circuit.id} has no option {name!r}", "", near=near)
        elif value not in option.choices:
            listed = ", ".join(option.choices)
            facts.report("KM303", f"option {name} is one of {listed}, not {value!r}", f"/options/{name}")


def _config(facts: Facts, name: str, entry: ConfigEntry) -> None:
    where = f"/config/{name}"
    value: ConfigValue | None = entry.value
    if entry.key is not None:
        key = entry.key.replace("{arch}", facts.inventory.architecture)
        value = facts.inventory.metadata.get(key, entry.default)
        if value is None:
            near = nearest(key, facts.inventory.metadata)
            facts.report("KM304", f"the model has no metadata {key!r}, and there is no default", where, near=near)
            return
    assert value is not None
    if entry.array and not isinstance(value, tuple):
        value = (value,) * facts.layer_count
    if isinstance(value, tuple) != entry.array:
        facts.report("KM304", f"config {name} takes one value, and the model has {len(value)}", where)  # type: ignore[arg-type]
        return
    items = value if isinstance(value, tuple) else (value,)
    for item in items:
        if not isinstance(item, _TYPES[entry.type]) or (isinstance(item, bool) and entry.type != "bool"):
            facts.report("KM304", f"config {name} takes {entry.type}, not {item!r}", where)
            return
    if entry.array and len(items) < facts.layer_count:
        facts.report("KM304", f"config {name} has {len(items)} values for {facts.layer_count} layers", where)
        return
    facts.config[name] = value
