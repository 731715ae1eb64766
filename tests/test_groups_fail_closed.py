"""For every pair of groups that share an op: a circuit op that asks for one never gets the other."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, permutations
from typing import Any

import pytest

from kernelmap.circuit.loading import CircuitFile
from kernelmap.circuit.storage import reference_inventory
from kernelmap.errors import KernelmapError
from kernelmap.models.circuit import Circuit
from kernelmap.models.contract import Contract, Port
from kernelmap.models.loading import validate
from kernelmap.models.policy import Policy, PolicyRoute
from kernelmap.registry import load_registry, make_registry
from kernelmap.resolver import resolve
from kernelmap.vocabulary import Phase
from support import make_host, source_of

REGISTRY = load_registry()
OPS = (
    "moe_router", "moe_swiglu_expert_mlp", "moe_relu_squared_expert_mlp", "shared_swiglu_expert_mlp",
    "shared_relu_squared_expert_mlp", "gemm_nt",
)  # fmt: skip
SIZES = {"H": 256, "I": 256, "E": 8, "K": 2}
GEMM_SIZES = {"N": 8, "K": 256}
PARAMS: dict[str, Any] = {
    "scale": 1.0, "n_group": 1, "topk_group": 1, "renormalize": "clamp", "beta": 4.0, "linear_beta": 25.0,
    "alpha": 1.702, "limit": 7.0,
}  # fmt: skip


def pairs() -> Iterator[tuple[str, str]]:
    contracts = sorted((c for c in REGISTRY.contracts.values() if c.op in OPS), key=lambda c: c.op)
    for _, sharing in groupby(contracts, key=lambda c: c.op):
        yield from permutations((contract.equivalence_group for contract in sharing), 2)


def shape_of(port: Port) -> list[Any]:
    return [size if isinstance(size, int) else str(size) for size in port.shape]


def circuit_of(contract: Contract) -> CircuitFile:
    """One op of this group, its weights stored in the group's formats."""
    sizes = GEMM_SIZES if contract.op == "gemm_nt" else SIZES
    dims = {name: sizes[name] for name in contract.static_dims}
    op = {
        "name": "block", "op": contract.op, "equivalence_group": contract.equivalence_group,
        "inputs": {port.name: port.name for port in contract.inputs},
        "weights": {port.name: f"blk.{{layer}}.{port.name}.weight" for port in contract.weights},
        "params": {param.name: PARAMS[param.name] for param in contract.params}, "dims": dims,
    }  # fmt: skip
    tensors = [
        {"name": f"blk.{{layer}}.{port.name}.weight", "format": port.dtype, "shape": [dims[str(s)] for s in port.shape]}
        for port in contract.weights
    ]
    value = {
        "schema_version": 1, "id": "one_op", "summary": "one op", "architectures": ["toy"],
        "config": {"n_layer": {"key": "{arch}.block_count", "type": "int"}}, "dims": dims, "dynamic_dims": ["R"],
        "inputs": [
            {"name": port.name, "dtype": port.dtype, "shape": shape_of(port), "scope": "layer"}
            for port in contract.inputs
        ],
        "blocks": {"main": {"ops": [op]}},
        "layers": {"count": "config.n_layer", "rules": [{"block": "main"}]},
        "outputs": [{"name": "y", "value": f"block.{contract.outputs[0].name}", "scope": "layer"}],
        "storage": {
            "source": "made up", "architecture": "toy", "metadata": {"toy.block_count": 1}, "tensors": tensors,
        },
    }  # fmt: skip
    source = source_of(value, "one_op.json")
    return CircuitFile(validate(source, Circuit), source)


def routes(*groups: str) -> tuple[PolicyRoute, ...]:
    """Everything in these groups is allowed to compete."""
    ids = [item.id for group in groups for item in REGISTRY.ladders[group]]
    return tuple(
        PolicyRoute(op="block", phase=phase, allow=name) for name in ids for phase in (Phase.PREFILL, Phase.DECODE)
    )


def test_there_are_pairs_of_every_kind() -> None:
    found = list(pairs())
    assert len(found) > 250
    llama, sigmoid = (
        "llama_full_softmax_topk_selected_renorm_fp32", "sigmoid_group_limited_topk_bias_select_raw_gather_fp32",
    )  # fmt: skip
    assert (llama, sigmoid) in found and (sigmoid, llama) in found
    exact, blas = "fp32_weight_fp32_internal_fp32_output", "fp32_weight_blas_tolerance_fp32_output"
    assert (exact, blas) in found and (blas, exact) in found


@pytest.mark.parametrize("asked", sorted({asked for asked, _ in pairs()}))
def test_an_op_gets_its_own_group_whatever_else_there_is(asked: str) -> None:
    file = circuit_of(REGISTRY.contracts[asked])
    inventory = reference_inventory(file.circuit, file.source)
    policy = Policy(routes=routes(asked))
    plan = resolve(file.circuit, file.source, inventory, REGISTRY, make_host(), policy)
    own = {item.id for item in REGISTRY.ladders[asked]}
    assert {decision.provider for decision in plan.decisions} <= own
    assert {candidate.id for decision in plan.decisions for candidate in decision.candidates} <= own


@pytest.mark.parametrize("asked", sorted({asked for asked, _ in pairs()}))
def test_the_other_group_is_never_taken_even_when_it_is_all_that_is_left(asked: str) -> None:
    file = circuit_of(REGISTRY.contracts[asked])
    inventory = reference_inventory(file.circuit, file.source)
    others = [other for first, other in pairs() if first == asked]
    assert others
    for other in others:
        left = make_registry(REGISTRY.ladders[other], REGISTRY.contracts)
        with pytest.raises(KernelmapError) as refused:
            resolve(file.circuit, file.source, inventory, left, make_host(), Policy())
        assert not any(item.id in str(refused.value) for item in REGISTRY.ladders[other])
