"""Expert blocks against ggml's and a torch baseline: time ratios in interleaved rounds of one process.

    python tools/bench_moe.py --cases q4k_q4k,gpt_oss --tokens 1,10,512 --routings uniform --json result.json

Ratios are to the faster of ggml's default and repacked buffers, from medians. Every call takes the next of several
inputs, so that a routing is not met twice in a row. Expert matrices are random fp32 quantized by ggml: a few different
ones, repeated at different addresses, so all sides multiply the same bytes and stream them from memory. Ours are the
shipped providers of the group, called through bind: model file, circuit, resolve, the bound op. The torch baseline
dequantizes each expert that a token selected and multiplies in fp32, expert by expert.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

import peer
from bench_gemm import host
from bound import bound_ops, by_name, call_with
from kernelmap.bind import BoundOp
from kernelmap.vocabulary import Phase
from kernelmap_providers.formats import decode
from limits import limits
from peer_moe import PeerBlock, PeerWeights

Array = npt.NDArray[Any]
Call = Callable[[int], Any]
TOKENS = (1, 10, 64, 512, 4096)
ROUTINGS = ("uniform", "zipf")
DISTINCT = 4
"""Different expert matrices; the others repeat them."""
INPUTS = 4
ROUND_SECONDS = 0.03
SLOW_TOKENS = 512
"""More tokens than these are not given to the naive form and to torch."""
PREFILL, DECODE = Phase.PREFILL, Phase.DECODE


@dataclass(frozen=True)
class Case:
    """Dims, formats and providers of one block; no slots mean a shared expert with a scalar gate."""

    experts: int
    slots: int
    hidden: int
    width: int
    gate: str
    down: str
    stored: str
    """Provider that reads the weights as stored."""
    prefill: str
    decode: str
    naive: str = ""
    biased: bool = False

    @property
    def gated(self) -> bool:
        """A shared expert."""
        return self.slots == 0


def _swiglu(down: str, experts: tuple[int, int, int, int] = (256, 8, 2048, 512), naive: str = "") -> Case:
    name = f"moe_swiglu_expert_forward_q4k_{down.replace('_', '')}"
    return Case(*experts, "q4_k", down, name, f"{name}_bucketed", f"{name}_packed", naive and f"{name}_{naive}")


_OSS = "moe_clamped_swiglu_biased_expert_forward_mxfp4_mxfp4"
_GATED = "moe_swiglu_shared_forward_q8_0_gated"
CASES = {
    "q4k_q4k": _swiglu("q4_k"),
    "q4k_q5k": _swiglu("q5_k", naive="naive"),
    "q4k_q6k": _swiglu("q6_k"),
    "gpt_oss": Case(32, 4, 2880, 2880, "mxfp4", "mxfp4", _OSS, f"{_OSS}_packed", f"{_OSS}_packed", biased=True),
    "q8_0_gated": Case(1, 0, 2048, 512, "q8_0", "q8_0", _GATED, f"{_GATED}_packed", f"{_GATED}_packed"),
}
"""Qwen3.5-35B-A3B (its Q5_K down and shared expert), Laguna-XS-like (Q6_K down), gpt-oss-20b."""


@dataclass(frozen=True)
class Result:
    """One measured cell; times are medians in milliseconds, of CPU time for one thread and of wall time for more."""

    case: str
    routing: str
    tokens: int
    threads: int
    times: dict[str, float]
    busy: dict[str, float] = field(default_factory=dict)
    """CPU time / wall time of each form: other programs' load shows as too small a number."""
    ratio: float = 0.0
    """Packed or bucketed / the faster ggml path."""
    stored_to_ggml: float = 0.0
    """Our denominator, the provider of stored weights / ggml's default path."""
    to_stored: float = 0.0
    """Packed or bucketed / our provider of stored weights."""
    rms: float = 0.0
    """Relative rms distance to ggml's output."""
    load: float = 0.0
    """The machine's load average before the cell."""


class Layer:
    """One block's weights on all sides, the providers bound."""

    def __init__(self, ggml: peer.Ggml, name: str) -> None:
        self.ggml, self.name, self.case = ggml, name, CASES[name]
        case, rng = self.case, np.random.default_rng(0)
        self.matrices: dict[str, tuple[str, Array, int]] = {}
        for role, storage, rows, values in (
            ("gate", case.gate, case.width, case.hidden), ("up", case.gate, case.width, case.hidden),
            ("down", case.down, case.hidden, case.width),
        ):  # fmt: skip
            few = min(DISTINCT, case.experts)
            made = (rng.standard_normal((few * rows, values)) * 0.05).astype(np.float32)
            bytes_ = ggml.quantize(storage, made).reshape(few, rows, -1)
            self.matrices[role] = storage, np.resize(bytes_, (case.experts, *bytes_.shape[1:])), values
        for role, rows in (("gate_bias", case.width), ("up_bias", case.width), ("down_bias", case.hidden)):
            if case.biased:
                self.matrices[role] = "fp32", rng.standard_normal((case.experts, rows)).astype(np.float32) * 0.1, rows
        if case.gated:
            gate = rng.standard_normal((1, case.hidden)).astype(np.float32) * 0.05
            self.matrices["gate_input"] = "fp32", gate, case.hidden
        self.peers = {"ggml": PeerWeights(ggml, self.matrices, False)}
        repacked = PeerWeights(ggml, self.matrices, True)
        if repacked.repacked:
            self.peers["ggml_repack"] = repacked
        else:
            repacked.free()
        self.bound = self._bound()

    def _bound(self) -> dict[str, dict[Phase, BoundOp]]:
        case = self.case
        ids = {"packed": {PREFILL: case.prefill, DECODE: case.decode}, "stored": {PREFILL: case.stored,
               DECODE: case.stored}}  # fmt: skip
        bound = {form: self._bind(providers) for form, providers in ids.items()}
        if case.naive:
            bound["naive"] = {phase: by_name(op, case.naive) for phase, op in bound["stored"].items()}
        return bound

    def _bind(self, providers: Mapping[Phase, str]) -> dict[Phase, BoundOp]:
        case = self.case
        row = {"dtype": "fp32", "shape": ["R", "H"], "scope": "layer"}
        stem = "shared" if case.gated else "expert"
        ports = {role: role if "_" in role else f"{stem}_{role}" for role in self.matrices}
        op = {"name": "bench", "weights": {port: f"blk.{{layer}}.{role}.weight" for role, port in ports.items()},
              "outputs": {"output": "y"}}  # fmt: skip
        dims = {"H": f"shape(blk.0.down.weight)[{0 if case.gated else 1}]"}
        metadata = {}
        act = f"{{{stem}_gate}}_{{{stem}_gate.act}}"
        if case.gated:
            inputs = [{"name": "hidden", **row}, {"name": "routed", **row}]
            op |= {"op": "shared_swiglu_expert_mlp",
                   "equivalence_group": f"{act}_shared_swiglu_fp32_sigmoid_gate_then_routed_add"}  # fmt: skip
        else:
            dims["K"], metadata = "config.slots", {"slots": case.slots}
            inputs = [{"name": "hidden", **row}, {"name": "indices", **row, "dtype": "i32", "shape": ["R", "K"]},
                      {"name": "routing_weights", **row, "shape": ["R", "K"]}]  # fmt: skip
            mid, end = ("_bias_clamped_swiglu", "_down_bias") if case.biased else ("_ggml_swiglu", "_down")
            down = f"{{{stem}_down}}_{{{stem}_down.act}}"
            op |= {"op": "moe_swiglu_expert_mlp", "equivalence_group": f"{act}_gate_up{mid}_{down}{end}_weighted_fp32"}
        op["inputs"] = {item["name"]: item["name"] for item in inputs}
        tensors = {f"blk.0.{role}.weight": (storage, data[0] if case.gated else data)
                   for role, (storage, data, _) in self.matrices.items()}  # fmt: skip
        bound = bound_ops(op, dims, inputs, tensors, providers, metadata)
        return {phase: ops[0] for phase, ops in bound.items()}

    def free(self) -> None:
        """Release ggml's buffers."""
        for weights in self.peers.values():
            weights.free()


def inputs(case: Case, tokens: int, routing: str, seed: int) -> dict[str, Array]:
    """Hidden rows; expert ids without repetition in a token and weights that sum to 1, or the rows to add to."""
    rng = np.random.default_rng(seed)
    hidden = rng.standard_normal((tokens, case.hidden)).astype(np.float32)
    if case.gated:
        return {"hidden": hidden, "routed": rng.standard_normal((tokens, case.hidden)).astype(np.float32)}
    popularity = np.zeros(case.experts)
    if routing == "zipf":
        popularity = -np.log(1.0 + rng.permutation(case.experts))
    scores = popularity + rng.gumbel(size=(tokens, case.experts))
    ids = np.ascontiguousarray(np.argsort(-scores, axis=1)[:, : case.slots].astype(np.int32))
    weights = rng.random((tokens, case.slots)).astype(np.float32)
    return {"hidden": hidden, "indices": ids, "routing_weights": weights / weights.sum(1, keepdims=True)}


def ours(layer: Layer, given: list[dict[str, Array]], threads: int) -> dict[str, Call]:
    """Our providers; a call takes the number of the input and returns the output."""
    tokens, calls = len(given[0]["hidden"]), {}
    for form, phases in layer.bound.items():
        if form != "naive" or (tokens <= SLOW_TOKENS and threads == 1):
            op = phases[PREFILL if tokens > 1 else DECODE]
            calls[form] = _our_call(op, given, threads)
    return calls


def _our_call(op: BoundOp, given: list[dict[str, Array]], threads: int) -> Call:
    y = np.empty_like(given[0]["hidden"])
    runs = [call_with(op, values, y, threads) for values in given]

    def call(index: int) -> Array:
        status = runs[index % len(runs)]()
        if status:
            raise RuntimeError(f"{op.map.id}: status {status}")
        return y

    return call


def theirs(layer: Layer, given: list[dict[str, Array]], threads: int, keep: list[PeerBlock]) -> dict[str, Call]:
    """ggml's buffers, the inputs set beforehand; graphs go to ``keep``, to be freed by the caller."""
    calls: dict[str, Call] = {}
    for form, weights in layer.peers.items():
        blocks = [PeerBlock(weights, values) for values in given]
        keep += blocks

        def call(index: int, blocks: list[PeerBlock] = blocks) -> PeerBlock:
            block = blocks[index % len(blocks)]
            block.run(threads)
            return block

        calls[form] = call
    return calls


def torch_baseline(layer: Layer, given: list[dict[str, Array]], threads: int) -> dict[str, Call]:
    """Dequantize an expert, multiply, next; not for the gated block, and none where torch is missing."""
    try:
        import torch
    except ImportError:
        return {}
    case, m = layer.case, layer.matrices
    if case.gated or case.biased or len(given[0]["hidden"]) > SLOW_TOKENS:
        return {}

    def weight(role: str, expert: int) -> Any:
        storage, data, _ = m[role]
        return torch.from_numpy(decode(storage, data[expert]))

    def call(index: int) -> Array:
        torch.set_num_threads(threads)
        values = {name: torch.from_numpy(array) for name, array in given[index % len(given)].items()}
        x, ids, factors = values["hidden"], values["indices"], values["routing_weights"]
        y = torch.zeros_like(x)
        for expert in torch.unique(ids).tolist():
            row, slot = torch.where(ids == expert)
            inner = torch.nn.functional.silu(x[row] @ weight("gate", expert).T) * (x[row] @ weight("up", expert).T)
            y.index_add_(0, row, (inner @ weight("down", expert).T) * factors[row, slot, None])
        return y.numpy()

    return {"torch": call}


def measured(calls: dict[str, Call], rounds: int, threads: int) -> tuple[dict[str, float], dict[str, float]]:
    """Median seconds of a call and CPU time / wall time of every form, in interleaved rounds.

    One thread is timed by its CPU time, which other programs' turns do not count in; several by the wall.
    """
    clock, quiet = (time.perf_counter, peer.QUIET_SECONDS) if threads > 1 else (time.thread_time, 0.0)
    repeats: dict[str, int] = {}
    for form, call in calls.items():
        call(0)
        start = time.perf_counter()
        call(1)
        repeats[form] = max(1, int(ROUND_SECONDS / (time.perf_counter() - start)))
    times: dict[str, list[float]] = {form: [] for form in calls}
    busy: dict[str, list[float]] = {form: [] for form in calls}
    turn = 0
    for done in range(rounds):
        for form, call in calls.items():
            if form in ("torch", "naive") and done > 2:
                continue
            time.sleep(quiet)
            turn += 1
            call(turn)
            cpu, wall, start = time.process_time(), time.perf_counter(), clock()
            for _ in range(repeats[form]):
                turn += 1
                call(turn)
            times[form].append((clock() - start) / repeats[form])
            busy[form].append((time.process_time() - cpu) / (time.perf_counter() - wall))
    return ({form: statistics.median(v) for form, v in times.items()},
            {form: statistics.median(v) for form, v in busy.items()})  # fmt: skip


def bench(layer: Layer, tokens: int, routing: str, threads: int, rounds: int, forms: list[str]) -> Result:
    """One cell."""
    load = os.getloadavg()[0]
    count = INPUTS if tokens < 4096 else 2
    given = [inputs(layer.case, tokens, routing, seed) for seed in range(count)]
    keep: list[PeerBlock] = []
    calls = {**theirs(layer, given, threads, keep), **ours(layer, given, threads),
             **torch_baseline(layer, given, threads)}  # fmt: skip
    calls = {form: call for form, call in calls.items() if form.startswith("ggml") or form in forms}
    reference = calls["ggml"](0).output()
    rms = _distance(calls["packed"](0), reference)
    times, busy = measured(calls, rounds, threads)
    for block in keep:
        block.free()
    best, mine, stored = min(v for f, v in times.items() if f.startswith("ggml")), times["packed"], times.get("stored")
    return Result(
        layer.name, routing, tokens, threads, {name: round(value * 1e3, 4) for name, value in times.items()},
        {name: round(value, 2) for name, value in busy.items()}, round(mine / best, 3),
        round(stored / times["ggml"], 3) if stored else 0.0, round(mine / stored, 3) if stored else 0.0,
        float(f"{rms:.1e}"), round(load, 2),
    )  # fmt: skip


def _distance(y: Array, reference: Array) -> float:
    return float(np.sqrt(np.mean((y - reference) ** 2) / np.mean(reference**2)))


def table(results: list[Result]) -> Table:
    """The results as people read them."""
    shown = Table(title="expert blocks: ms (CPU/wall)")
    names = list(dict.fromkeys(name for r in results for name in r.times))
    ratios = ("ratio", "packed/stored", "stored/ggml")
    for column in ("case", "routing", "T", "threads", *ratios, *names, "rms", "load"):
        shown.add_column(column, justify="right")
    for r in results:
        cells = [f"{r.times[n]:.3f} ({r.busy[n]:.1f})" if n in r.times else "" for n in names]
        shown.add_row(
            r.case, r.routing, str(r.tokens), str(r.threads), f"{r.ratio:.3f}", f"{r.to_stored:.2f}",
            f"{r.stored_to_ggml:.2f}", *cells, f"{r.rms:.0e}", f"{r.load:.1f}"
        )  # fmt: skip
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--tokens", default=",".join(map(str, TOKENS)))
    parser.add_argument("--routings", default=",".join(ROUTINGS))
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--forms", default="packed,stored,naive,torch", help="of ours and the baselines")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--libraries", type=Path, help="where libggml-cpu is (default: llama-cpp-python's)")
    parser.add_argument("--json", type=Path, help="write the results here")
    options = parser.parse_args()
    ggml = peer.Ggml(peer.find_library_dir(options.libraries))
    results: list[Result] = []
    for name in options.cases.split(","):
        layer = Layer(ggml, name)
        for routing in options.routings.split(",") if layer.case.slots else ["all"]:
            for tokens in map(int, options.tokens.split(",")):
                for threads in map(int, options.threads.split(",")):
                    results.append(bench(layer, tokens, routing, threads, options.rounds, options.forms.split(",")))
        layer.free()
        Console(width=220).print(table([r for r in results if r.case == name]))
    if options.json:
        document = {"host": host(), "limits": limits(), "results": [asdict(result) for result in results]}
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
