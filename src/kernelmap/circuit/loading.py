"""Circuit files: by name or path, validated and checked as far as that goes without a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelmap.circuit.elaborate import try_elaborate
from kernelmap.circuit.storage import reference_inventory
from kernelmap.errors import Diagnostic, KernelmapError, Place, nearest
from kernelmap.expressions import Predicate, ScalarExpr
from kernelmap.jsonsource import JsonSource, read_json
from kernelmap.models.circuit import Circuit, Op, ParamExpr
from kernelmap.models.contract import Contract
from kernelmap.models.kernel_map import KernelMap
from kernelmap.models.loading import validate
from kernelmap.sources import json_files, provider_packages, shipped_circuits
from kernelmap.templates import TemplateError, holes


@dataclass(frozen=True, slots=True)
class CircuitFile:
    """A circuit and the source it was read from."""

    circuit: Circuit
    source: JsonSource


def circuit_paths(extra: Sequence[Path] = ()) -> dict[str, Path]:
    """Circuit name to file: the shipped ones, those of provider packages, then those of ``extra`` folders (which win).

    Raises KernelmapError if a package takes the name of a circuit that is there: installing one must not change plans.
    """
    found = {path.stem: path for path in json_files(shipped_circuits())}
    clashes: list[Diagnostic] = []
    for package in provider_packages():
        for path in json_files(package.folder / "circuits") if package.folder is not None else ():
            first = found.setdefault(path.stem, path)
            if first.resolve() != path.resolve():
                message = f"circuit {path.stem!r} is declared twice"
                clashes.append(Diagnostic("KM201", message, place=Place(str(path)), help=f"the first is in {first}"))
    if clashes:
        raise KernelmapError(clashes)
    for folder in extra:
        found.update({path.stem: path for path in json_files(folder)})
    return found


def read_circuit(name: str, extra: Sequence[Path] = ()) -> CircuitFile:
    """A circuit by the name of a shipped one, or by path. Raises KernelmapError with every problem of the file."""
    paths = circuit_paths(extra)
    if name.endswith(".json") or "/" in name:
        path = Path(name)
    elif name in paths:
        path = paths[name]
    else:
        help = f"there are: {', '.join(paths)}"
        raise KernelmapError(Diagnostic("KM301", f"no circuit {name!r}", near=nearest(name, paths), help=help))
    source = read_json(path)
    circuit = validate(source, Circuit)
    problems = list(_static_problems(circuit, source))
    if problems:
        raise KernelmapError(problems)
    return CircuitFile(circuit, source)


def circuit_for(architecture: str, extra: Sequence[Path] = ()) -> CircuitFile:
    """The one circuit that serves a model architecture. Raises KernelmapError if there is none or more than one."""
    files = [read_circuit(name, extra) for name in circuit_paths(extra)]
    serving = [item for item in files if architecture in item.circuit.architectures]
    if len(serving) == 1:
        return serving[0]
    known = sorted({name for item in files for name in item.circuit.architectures})
    if not serving:
        help = f"circuits serve: {', '.join(known)}"
        near = nearest(architecture, known)
        raise KernelmapError(
            Diagnostic("KM301", f"no circuit serves architecture {architecture!r}", near=near, help=help)
        )
    names = ", ".join(item.circuit.id for item in serving)
    raise KernelmapError(
        Diagnostic("KM301", f"several circuits serve {architecture!r}: {names}", help="name the one that you mean")
    )


def circuit_problems(
    item: CircuitFile, contracts: Mapping[str, Contract], maps: Mapping[str, KernelMap]
) -> list[Diagnostic]:
    """What is wrong with a circuit given a registry: routes, and its reference storage elaborated."""
    found = list(_route_problems(item.circuit, item.source, maps))
    if item.circuit.storage is None:
        return found
    try:
        inventory = reference_inventory(item.circuit, item.source)
    except KernelmapError as error:
        return [*found, *error.diagnostics]
    return [*found, *try_elaborate(item.circuit, item.source, inventory, contracts)[1]]


def _ops(circuit: Circuit) -> Iterator[tuple[str, Op]]:
    for name, block in circuit.blocks.items():
        for index, op in enumerate(block.ops):
            yield f"/blocks/{name}/ops/{index}", op


def _static_problems(circuit: Circuit, source: JsonSource) -> Iterator[Diagnostic]:
    stem = Path(source.name).stem
    if stem != circuit.id:
        yield Diagnostic("KM202", f"id {circuit.id!r} in a file named {stem!r}", place=source.place("/id"))
    yield from _block_names(circuit, source)
    yield from _expression_names(circuit, source)
    for where, op in _ops(circuit):
        try:
            named = holes(op.equivalence_group)
        except TemplateError as error:
            yield Diagnostic("KM307", f"template: {error}", place=source.place(f"{where}/equivalence_group"))
            continue
        known = {*op.weights, *circuit.options}
        for name in named:
            if name not in known:
                place = source.place(f"{where}/equivalence_group")
                near = nearest(name, known)
                yield Diagnostic("KM307", f"{name!r} is no weight of the op and no option", place=place, near=near)
        for name in sorted(set(op.weights) & set(circuit.options)):
            place = source.place(f"{where}/weights/{name}", key=True)
            yield Diagnostic("KM307", f"{name!r} is both a weight port and an option", place=place)


def _block_names(circuit: Circuit, source: JsonSource) -> Iterator[Diagnostic]:
    used: list[tuple[str, str]] = []
    for part in ("init", "header", "footer"):
        name = getattr(circuit, part)
        if name is not None:
            used.append((f"/{part}", name))
    for index, rule in enumerate(circuit.layers.rules if circuit.layers is not None else ()):
        for part in ("mixer", "ffn", "block"):
            name = getattr(rule, part)
            if name is not None:
                used.append((f"/layers/rules/{index}/{part}", name))
    for where, name in used:
        if name not in circuit.blocks:
            near = nearest(name, circuit.blocks)
            yield Diagnostic("KM318", f"there is no block {name!r}", place=source.place(where), near=near)
    for name in sorted(set(circuit.blocks) - {name for _, name in used}):
        place = source.place(f"/blocks/{name}", key=True)
        yield Diagnostic("KM318", f"no layer rule uses block {name!r}", place=place)
    for name, block in circuit.blocks.items():
        names = [op.name for op in block.ops]
        for index, op in enumerate(block.ops):
            if op.name in names[:index]:
                place = source.place(f"/blocks/{name}/ops/{index}/name")
                yield Diagnostic("KM319", f"two ops of block {name!r} are called {op.name!r}", place=place)


def _expression_names(circuit: Circuit, source: JsonSource) -> Iterator[Diagnostic]:
    """Config values and options that expressions name and the circuit does not declare."""
    for where, expr in _expressions(circuit):
        for kind, named, known in (
            ("config", expr.config_names, circuit.config),
            ("option", expr.option_names, circuit.options),
            ("dim", expr.names, {*circuit.dims, *circuit.dynamic_dims}),
        ):
            for name in sorted(set(named) - set(known)):
                near = nearest(name, known)
                place = source.place(where)
                yield Diagnostic(
                    "KM305", f"{expr} names {kind} {name!r}, which the circuit lacks", place=place, near=near
                )


def _expressions(circuit: Circuit) -> Iterator[tuple[str, ScalarExpr | Predicate]]:
    yield from ((f"/dims/{name}", item) for name, item in circuit.dims.items() if not isinstance(item, int))
    for where, op in _ops(circuit):
        if op.when is not None:
            yield f"{where}/when", op.when
        yield from ((f"{where}/dims/{n}", item) for n, item in op.dims.items() if not isinstance(item, int))
        yield from ((f"{where}/params/{n}", item.expr) for n, item in op.params.items() if isinstance(item, ParamExpr))
    if circuit.layers is not None:
        if not isinstance(circuit.layers.count, int):
            yield "/layers/count", circuit.layers.count
        for index, rule in enumerate(circuit.layers.rules):
            if rule.when is not None:
                yield f"/layers/rules/{index}/when", rule.when
    sized: Iterable[tuple[str, Sequence[int | ScalarExpr]]] = (
        *((f"/inputs/{i}/shape", item.shape) for i, item in enumerate(circuit.inputs)),
        *((f"/state/{i}/shape", item.shape) for i, item in enumerate(circuit.state)),
        *((f"/carry/{i}/shape", item.shape) for i, item in enumerate(circuit.carry)),
    )
    for where, shape in sized:
        yield from ((f"{where}/{axis}", item) for axis, item in enumerate(shape) if not isinstance(item, int))


def _route_problems(circuit: Circuit, source: JsonSource, maps: Mapping[str, KernelMap]) -> Iterator[Diagnostic]:
    ops = {op.name for _, op in _ops(circuit)}
    for index, route in enumerate(circuit.routes):
        where = f"/routes/{index}"
        if route.op not in ops:
            near = nearest(route.op, ops)
            yield Diagnostic(
                "KM330", f"route for unknown op {route.op!r}", place=source.place(f"{where}/op"), near=near
            )
        if route.allow not in maps:
            near = nearest(route.allow, maps)
            message = f"route allows unknown provider {route.allow!r}"
            yield Diagnostic("KM330", message, place=source.place(f"{where}/allow"), near=near)
