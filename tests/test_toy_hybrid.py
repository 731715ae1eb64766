"""A circuit that uses every feature of circuit files: it resolves, binds, runs, and keeps its state."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernelmap.bind import BoundPlan, bind
from kernelmap.check import check_paths
from kernelmap.circuit.elaborate import elaborate
from kernelmap.circuit.loading import circuit_problems
from kernelmap.circuit.storage import reference_inventory
from kernelmap.errors import BindError, KernelInputError, KernelmapError
from kernelmap.host import load_host
from kernelmap.models.inventory import Inventory
from kernelmap.models.policy import Policy
from kernelmap.planner import GUARD_BYTES
from kernelmap.resolver import resolve
from kernelmap.session import Session
from kernelmap.vocabulary import Phase
from toy import MAPS, statement, toy_circuit, toy_packages, toy_registry, toy_value, weights, write_model

HOST = load_host("avx2_2core")
TOKENS = np.array([3, 1, 4, 1, 5, 9, 2, 6, 5], np.int32)


@pytest.fixture(autouse=True)
def packages() -> Iterator[None]:
    with toy_packages():
        yield


@pytest.fixture
def model(tmp_path: Path) -> Inventory:
    return write_model(tmp_path / "toy.gguf", weights())


def make_session(model: Inventory, threads: int = 1, **policy: Any) -> Session:
    circuit, registry = toy_circuit(), toy_registry()
    plan = resolve(circuit.circuit, circuit.source, model, registry, HOST, Policy(**policy))
    bound = bind(plan, circuit, registry, model, host=HOST, environ={})
    return Session(bound, threads=threads, capacity={"S": 9})


def feed(session: Session, *chunks: int) -> np.ndarray[Any, Any]:
    """Logits of all tokens, given in chunks: of several tokens to prefill, of one to decode."""
    parts, start = [], 0
    for size in chunks:
        given = {"tokens": TOKENS[start : start + size], "positions": np.arange(start, start + size, dtype=np.int32)}
        out = session.decode(given) if size == 1 else session.prefill(given)
        parts.append(out["logits"])
        start += size
        assert out["seen"].tolist() == [start]
    return np.concatenate(parts)


def test_check_finds_nothing() -> None:
    circuit, registry = toy_circuit(), toy_registry()
    assert circuit_problems(circuit, registry.contracts, registry.maps) == []
    assert [p for p in check_paths([MAPS]).problems if p.severity == "error"] == []


def test_every_feature_is_used() -> None:
    """If the circuit model grows a field, the toy circuit uses it."""
    from kernelmap.models import circuit as models

    used: set[tuple[str, str]] = set()

    def walk(item: Any) -> None:
        if isinstance(item, models.StrictModel):
            used.update((type(item).__name__, name) for name in item.model_fields_set)
            for name in type(item).model_fields:
                walk(getattr(item, name))
        elif isinstance(item, dict):
            for value in item.values():
                walk(value)
        elif isinstance(item, tuple):
            for value in item:
                walk(value)

    walk(toy_circuit().circuit)
    kinds = ("ConfigEntry", "Option", "Runtime", "CircuitInput", "CircuitOutput", "StateTensor", "Carry", "CarryUpdate",
             "WeightView", "WeightAlternatives", "ParamExpr", "Op", "Block", "LayerRule", "Layers", "Route", "Storage",
             "StorageTensor", "Circuit")  # fmt: skip
    unused = {(kind, name) for kind in kinds for name in getattr(models, kind).model_fields if (kind, name) not in used}
    # For partial circuits and recordings only; optional alternatives are an error of their own when missing.
    assert unused == {
        ("Circuit", "partial"), ("CircuitInput", "scope"), ("CircuitInput", "recorded_as"),
        ("CircuitOutput", "recorded_as"), ("WeightAlternatives", "optional"),
    }  # fmt: skip


def test_it_resolves_on_its_reference_storage() -> None:
    circuit, registry = toy_circuit(), toy_registry()
    inventory = reference_inventory(circuit.circuit, circuit.source)
    plan = resolve(circuit.circuit, circuit.source, inventory, registry, HOST)
    assert plan.phases == (Phase.INIT, Phase.PREFILL, Phase.DECODE)
    groups = {d.group for d in plan.decisions if d.name == "attend"}
    assert groups == {"toy_attend_fp32_cache"}
    half = resolve(circuit.circuit, circuit.source, inventory, registry, HOST, Policy(options={"kv_cache": "fp16"}))
    assert {d.group for d in half.decisions if d.name == "attend"} == {"toy_attend_fp16_cache"}
    assert half.digest != plan.digest
    elaborated = elaborate(circuit.circuit, circuit.source, inventory, registry.contracts)
    assert [i.shared.op.name for i in elaborated.instances if i.layer == 2] == [
        "norm",
        "twice",
        "attend",
        "join",
        "mlp",
        "out",
    ]
    assert [i.shared.op.name for i in elaborated.instances if i.layer == 3] == ["plain"]
    assert set(elaborated.states) == {"state/cache/0", "state/cache/2", "state/memory/1", "state/total"}
    views = {port: w.rows for i in elaborated.instances if i.shared.op.name == "mlp" for port, w in i.weights.items()}
    assert views == {"gate": (0, 6), "up": (6, 12), "down": None}


@pytest.mark.parametrize("cache", ["fp32", "fp16"])
@pytest.mark.parametrize("chunks", [(9,), (4, 4, 1), (2, 3, 1, 1, 2), (1,) * 9])
def test_chunks_and_steps_give_what_one_pass_gives(model: Inventory, cache: str, chunks: tuple[int, ...]) -> None:
    session = make_session(model, options={"kv_cache": cache})
    expected = statement(weights(), TOKENS, cache)["logits"]
    np.testing.assert_array_equal(feed(session, *chunks), expected)
    session.check_counters()


def test_a_session_keeps_its_own_state(model: Inventory) -> None:
    first, second = make_session(model), make_session(model)
    whole = feed(first, 9)
    feed(second, 4)
    rest = second.prefill({"tokens": TOKENS[4:], "positions": np.arange(4, 9, dtype=np.int32)})["logits"]
    np.testing.assert_array_equal(rest, whole[4:])


def test_layer_outputs_and_untied_head(tmp_path: Path) -> None:
    tensors = weights() | {"output.weight": np.ones((11, 8), np.float32)}
    session = make_session(write_model(tmp_path / "untied.gguf", tensors))
    out = session.prefill({"tokens": TOKENS, "positions": np.arange(9, dtype=np.int32)})
    assert sorted(out) == ["logits", "mixed/0", "mixed/1", "mixed/2", "seen"]
    assert np.ptp(out["logits"], axis=1).max() < 1e-5, "a head of ones scores all words alike: output.weight was taken"


def test_a_bad_row_names_op_and_row(model: Inventory) -> None:
    session = make_session(model)
    with pytest.raises(KernelInputError) as caught:
        session.prefill({"tokens": np.array([1, 2, 99], np.int32), "positions": np.arange(3, dtype=np.int32)})
    (problem,) = caught.value.diagnostics
    assert problem.code == "KM530" and "embed" in problem.message and "row 2" in problem.message


@pytest.mark.parametrize(
    ("inputs", "code"),
    [
        ({"tokens": TOKENS}, "KM522"),
        ({"tokens": TOKENS, "positions": TOKENS, "extra": TOKENS}, "KM522"),
        ({"tokens": TOKENS.astype(np.int64), "positions": TOKENS}, "KM523"),
        ({"tokens": TOKENS[None], "positions": TOKENS}, "KM523"),
        ({"tokens": TOKENS, "positions": TOKENS[:3]}, "KM523"),
    ],
)
def test_wrong_inputs(model: Inventory, inputs: dict[str, Any], code: str) -> None:
    with pytest.raises(KernelInputError) as caught:
        make_session(model).prefill(inputs)
    assert {item.code for item in caught.value.diagnostics} == {code}


def test_state_needs_a_capacity_and_threads_a_number(model: Inventory) -> None:
    bound = make_session(model).bound
    with pytest.raises(KernelmapError) as caught:
        Session(bound)
    assert caught.value.diagnostics[0].code == "KM525"
    for threads in (0, -1, 257, 10**9):
        with pytest.raises(KernelmapError) as caught:
            Session(bound, threads=threads, capacity={"S": 4})
        assert caught.value.diagnostics[0].code == "KM520"


def test_variants_follow_guards_and_the_trace_says_so(model: Inventory) -> None:
    session = make_session(model)
    feed(session, 4, 1)
    wide = {(e.variant, e.fallback_from) for e in session.trace if e.op == "attend" and e.phase is Phase.PREFILL}
    one = {(e.variant, e.fallback_from) for e in session.trace if e.op == "attend" and e.phase is Phase.DECODE}
    assert wide == {("wide", ())} and one == {("serial", ("wide",))}


def test_a_kill_switch_disables_a_variant_and_is_rechecked(model: Inventory) -> None:
    session = make_session_with_switch(model)
    feed(session, 4)
    assert {e.variant for e in session.trace if e.op == "attend"} == {"serial"}
    circuit, registry = toy_circuit(), toy_registry()
    plan = session.bound.plan
    assert plan.digest != make_session(model).bound.plan.digest
    for environ in ({}, {"TOY_DISABLE_WIDE": "0"}):
        with pytest.raises(BindError) as caught:
            bind(plan, circuit, registry, model, host=HOST, environ=environ)
        assert [item.code for item in caught.value.diagnostics] == ["KM506"]


def make_session_with_switch(model: Inventory) -> Session:
    circuit, registry = toy_circuit(), toy_registry()
    policy = Policy(kill_switches=("TOY_DISABLE_WIDE",))
    plan = resolve(circuit.circuit, circuit.source, model, registry, HOST, policy)
    environ = {"TOY_DISABLE_WIDE": "1"}
    return Session(bind(plan, circuit, registry, model, host=HOST, environ=environ), capacity={"S": 9})


def test_nothing_is_written_between_the_buffers(model: Inventory) -> None:
    """Guard bytes behind every buffer of the arena keep their pattern over a call."""
    session = make_session(model)
    feed(session, 4)
    session._arena[...] = 0xA5
    session.prefill({"tokens": TOKENS[:4], "positions": np.arange(4, dtype=np.int32)})
    (layout,) = [item for key, item in session._layouts.items() if key[0] is Phase.PREFILL]
    start = -session._arena.ctypes.data % layout.alignment
    base = session._arena[start:]
    covered = np.zeros(layout.size, np.bool_)
    for key, offset in layout.offsets.items():
        covered[offset : offset + layout.sizes[key]] = True
    assert (~covered).sum() >= GUARD_BYTES
    assert (base[: layout.size][~covered] == 0xA5).all()


def test_executed_must_equal_selected(model: Inventory) -> None:
    session = make_session(model)
    feed(session, 4)
    session.check_counters()
    session.executed[("attend@0", Phase.PREFILL, "somebody_else")] += 1
    with pytest.raises(KernelmapError) as caught:
        session.check_counters()
    assert caught.value.diagnostics[0].code == "KM531"


def test_a_signature_that_differs_is_refused(model: Inventory, monkeypatch: pytest.MonkeyPatch) -> None:
    from toy_providers import ops

    monkeypatch.setattr(ops, "add", lambda spec: lambda a, c, y, threads: 0)
    with pytest.raises(BindError) as caught:
        make_session(model)
    assert {item.code for item in caught.value.diagnostics} == {"KM510"}
    assert caught.value.diagnostics[0].expected == "a, b, y, threads"


def op(value: dict[str, Any], block: str, name: str) -> Any:
    return next(item for item in value["blocks"][block]["ops"] if item["name"] == name)


def storage(value: dict[str, Any], name: str) -> Any:
    return next(item for item in value["storage"]["tensors"] if item["name"] == name)


PLAIN = "blk.{layer}.plain.weight"


def window(value: dict[str, Any], text: str) -> None:
    op(value, "attn", "attend")["params"].update(window={"expr": text})


def group(value: dict[str, Any], block: str, name: str, text: str) -> None:
    op(value, block, name).update(equivalence_group=text)


EDITS = [
    ("KM304", "/config/hidden", lambda v: v["storage"]["metadata"].pop("toyhybrid.embedding_length")),
    ("KM304", "/config/window", lambda v: v["storage"]["metadata"].update({"toyhybrid.attention.window": [1, 2]})),
    ("KM304", "/config/hidden", lambda v: v["storage"]["metadata"].update({"toyhybrid.embedding_length": "8"})),
    ("KM302", "/architectures", lambda v: v.update(architectures=["other"])),
    ("KM306", "/layers/count", lambda v: v["storage"]["metadata"].update({"toyhybrid.block_count": 2**40})),
    ("KM306", "/dims/I", lambda v: v["dims"].update(I="config.rope_base")),
    ("KM308", "/blocks/scan/ops/0/weights/decay", lambda v: op(v, "scan", "scan")["weights"].update(decay="gone")),
    ("KM308", "/blocks/mlp/ops/0/weights/up/rows", lambda v: op(v, "mlp", "mlp")["weights"]["up"].update(rows=[6, 99])),
    ("KM309", "/blocks/head/ops/3/inputs/q", lambda v: op(v, "head", "logits")["inputs"].update(q="final.y")),
    ("KM309", "/blocks/head/ops/1/inputs", lambda v: op(v, "head", "final")["inputs"].pop("b")),
    ("KM309", "/blocks/head/ops/4", lambda v: op(v, "head", "cap")["params"].pop("cap")),
    ("KM310", "/blocks/plain/ops/0/weights/weight", lambda v: storage(v, PLAIN).update(format="fp16")),
    ("KM311", "/blocks/attn/ops/2/state/cache", lambda v: v["state"][0].update(dtype="fp16")),
    ("KM312", "/blocks/plain/ops/0/inputs/x", lambda v: storage(v, PLAIN).update(shape=[9])),
    ("KM312", "/blocks/head/carry/x", lambda v: v["blocks"]["head"].update(carry={"x": "logits.y"})),
    ("KM313", "/blocks/ropes/ops/0", lambda v: op(v, "ropes", "rope")["dims"].pop("H")),
    ("KM313", "/blocks/ropes/ops/0", lambda v: op(v, "ropes", "rope")["dims"].pop("S")),
    ("KM316", "/blocks/attn/ops/0/params/mode", lambda v: op(v, "attn", "norm")["params"].update(mode="thrice")),
    ("KM316", "/blocks/head/ops/5/params/cap", lambda v: op(v, "head", "pick")["params"].update(cap=0.0)),
    ("KM317", "/blocks/scan/ops/1/inputs/b", lambda v: op(v, "scan", "join")["inputs"].update(b="nobody")),
    ("KM317", "/outputs/0/value", lambda v: v["outputs"][0].update(value="nothing")),
    ("KM318", "/layers/rules", lambda v: v["layers"]["rules"][2].update(when="layer > 8")),
    ("KM319", "/blocks/mlp/ops/1/outputs", lambda v: op(v, "mlp", "out").update(outputs={"y": "mixed"})),
    ("KM319", "/blocks/head/ops/2/state/total", lambda v: op(v, "head", "count")["state"].update(total="totl")),
    ("KM319", "/blocks/mlp/carry/history", lambda v: v["blocks"]["mlp"]["carry"].update(history="out.y")),
    ("KM320", "/ignores", lambda v: v["ignores"].pop(0)),
    ("KM321", "/storage/tensors/0/format", lambda v: v["storage"]["tensors"][0].update(format="q9")),
    ("KM321", "/storage/tensors/0/shape", lambda v: v["storage"]["tensors"][0].update(format="q4_k")),
    ("KM451", "/blocks/plain/ops/0/equivalence_group", lambda v: group(v, "plain", "plain", "toy_fp16")),
    ("KM116", "/blocks/attn/ops/2/params/window", lambda v: window(v, "config.window")),
]  # fmt: skip


@pytest.mark.parametrize(("code", "pointer", "edit"), EDITS, ids=[f"{c}{p}" for c, p, _ in EDITS])
def test_each_mistake_is_placed(tmp_path: Path, code: str, pointer: str, edit: Any) -> None:
    value = toy_value()
    edit(value)
    registry = toy_registry()
    with pytest.raises(KernelmapError) as caught:
        circuit = toy_circuit(value, tmp_path)
        inventory = reference_inventory(circuit.circuit, circuit.source)
        resolve(circuit.circuit, circuit.source, inventory, registry, HOST)
    found = [(item.code, item.place.pointer) for item in caught.value.diagnostics if item.place is not None]
    assert (code, pointer) in found, found
    assert {item[0] for item in found} == {code}, "one mistake, one kind of problem"


STATIC = [
    ("KM318", "/footer", lambda v: v.update(footer="foot")),
    ("KM318", "/layers/rules/0/block", lambda v: v["layers"]["rules"][0].update(block="plane")),
    ("KM319", "/blocks/mlp/ops/1/name", lambda v: op(v, "mlp", "out").update(name="mlp")),
    ("KM305", "/layers/rules/0/when", lambda v: v["layers"]["rules"][0].update(when="layer == config.n_layers - 1")),
    ("KM305", "/blocks/head/ops/4/when", lambda v: op(v, "head", "cap").update(when="option.cap == 'x'")),
    ("KM305", "/inputs/0/shape/0", lambda v: v["inputs"][0].update(shape=["Q"])),
    ("KM307", "/blocks/attn/ops/2/equivalence_group", lambda v: group(v, "attn", "attend", "toy_{kv}")),
    ("KM202", "/id", lambda v: v.update(id="other")),
]  # fmt: skip


@pytest.mark.parametrize(("code", "pointer", "edit"), STATIC, ids=[f"{c}{p}" for c, p, _ in STATIC])
def test_static_mistakes_need_no_model(tmp_path: Path, code: str, pointer: str, edit: Any) -> None:
    value = toy_value()
    edit(value)
    with pytest.raises(KernelmapError) as caught:
        toy_circuit(value, tmp_path)
    assert (code, pointer) in [(i.code, i.place.pointer) for i in caught.value.diagnostics if i.place is not None]


def test_unknown_options_and_choices(model: Inventory) -> None:
    for options in ({"kv_cash": "fp16"}, {"kv_cache": "q8_0"}):
        with pytest.raises(KernelmapError) as caught:
            make_session(model, options=options)
        assert caught.value.diagnostics[0].code == "KM303"


def test_bound_plans_count_prepared_bytes(model: Inventory) -> None:
    bound: BoundPlan = make_session(model).bound
    assert bound.prepared_bytes == 0
    assert bound.plan.total_bytes == sum(
        t.nbytes
        for t in model.tensors
        if t.name not in ("rope_freqs.weight", "vision.patch.weight", "blk.2.unused.weight")
    )
