"""Routers against torch: time of a call / time of ``torch.softmax`` and ``torch.topk``, in interleaved rounds.

    python tools/bench_routers.py --experts 256 --tokens 512 --threads 1,2 --format json

Both sides get the same logits and as many threads. Every router is compared with the same torch calls, which compute
less than a contract asks for: no renormalised weights, no rule for ties, no refusal of rows, no groups. Ours is called
through bind: model file, circuit, resolve, the bound op.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from rich.table import Table

from bound import aligned_scratch, bound_ops
from kernelmap.bind import BoundOp
from kernelmap.vocabulary import Phase
from peer import QUIET_SECONDS

Array = npt.NDArray[Any]
SLOTS = 8
EXPERTS, TOKENS, THREADS = (32, 128, 256, 512), (1, 64, 512), (1, 2)
ROUTERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "softmax": ("moe_softmax_topk_router_llama_f32", "llama_full_softmax_topk_selected_renorm_fp32", {"scale": 1.0}),
    "selected": ("moe_topk_softmax_of_selected_router_f32", "biased_logits_topk_softmax_of_selected_fp32", {}),
    "sigmoid": (
        "group_limited_topk_router_sigmoid_f32", "sigmoid_group_limited_topk_bias_select_raw_gather_fp32",
        {"n_group": 8, "topk_group": 4, "renormalize": "clamp", "scale": 2.5},
    ),
}  # fmt: skip
"""Provider, contract and parameters."""
INPUTS = 8
"""Different logits: a repeated input would teach the branch predictor its experts."""
ROUND_SECONDS = 0.003


@dataclass(frozen=True)
class Result:
    """One measured case; times are medians in microseconds."""

    router: str
    experts: int
    tokens: int
    threads: int
    ours_us: float
    torch_us: float
    ratio: float
    ratio_low: float
    ratio_high: float
    """Quartiles of the rounds' ratios."""


def bound_router(name: str, experts: int, phase: Phase) -> BoundOp:
    """The bound op of a router over ``experts`` experts."""
    provider, group, params = ROUTERS[name]
    op = {
        "name": "bench", "op": "moe_router", "equivalence_group": group, "inputs": {"logits": "logits"},
        "dims": {"K": "config.used"}, "params": params, "outputs": {"weights": "w"},
    }  # fmt: skip
    inputs = [{"name": "logits", "dtype": "fp32", "shape": ["R", "E"], "scope": "layer"}]
    tensors = {"blk.0.unread.weight": ("fp32", np.zeros((1, 32), np.float32))}
    metadata = {"experts": experts, "used": SLOTS}
    providers = {Phase.PREFILL: provider, Phase.DECODE: provider}
    return bound_ops(op, {"E": "config.experts"}, inputs, tensors, providers, metadata)[phase][0]


def ours(op: BoundOp, given: list[Array], threads: int) -> Callable[[int], Any]:
    """A call with one of ``given``, its outputs and scratch allocated beforehand."""
    tokens = len(given[0])
    dims = {**op.instance.shared.dims, "R": tokens, "threads": threads}
    run = next(v for v in op.variants if v.admits(dims)).run
    outputs = np.zeros((tokens, SLOTS), np.int32), np.zeros((tokens, SLOTS), np.float32)
    nothing = [None] * len(op.instance.shared.contract.weights)
    scratch = aligned_scratch(op, dims)
    return lambda index: run(given[index % INPUTS], *nothing, *outputs, *scratch, threads)


def theirs(given: list[Array]) -> Callable[[int], Any]:
    """torch's softmax and top-k of one of ``given``."""
    tensors = [torch.from_numpy(logits) for logits in given]
    return lambda index: torch.topk(torch.softmax(tensors[index % INPUTS], -1), SLOTS)


def seconds(call: Callable[[int], Any], repeats: int, quiet: float = 0.0) -> float:
    """Mean time of a call, ``quiet`` seconds after the other side's threads were busy."""
    time.sleep(quiet)
    start = time.perf_counter()
    for index in range(repeats):
        call(index)
    return (time.perf_counter() - start) / repeats


def bench(name: str, experts: int, tokens: int, threads: int, rounds: int) -> Result:
    """One case."""
    torch.set_num_threads(threads)
    rng = np.random.default_rng(0)
    given = [rng.standard_normal((tokens, experts)).astype(np.float32) for _ in range(INPUTS)]
    op = bound_router(name, experts, Phase.PREFILL if tokens > 1 else Phase.DECODE)
    sides = ours(op, given, threads), theirs(given)
    repeats = [max(INPUTS, int(ROUND_SECONDS / seconds(side, INPUTS))) for side in sides]
    quiet = QUIET_SECONDS if threads > 1 else 0.0
    times = [[seconds(side, count, quiet) for side, count in zip(sides, repeats, strict=True)] for _ in range(rounds)]
    mine, peer = (statistics.median(column) for column in zip(*times, strict=True))
    low, _, high = statistics.quantiles([a / b for a, b in times])
    return Result(name, experts, tokens, threads, round(mine * 1e6, 2), round(peer * 1e6, 2), round(mine / peer, 3),
                  round(low, 3), round(high, 3))  # fmt: skip


def table(results: list[Result]) -> Table:
    """The results as people read them."""
    shown = Table(title="ours / torch softmax + topk (8 of E)")
    for column in ("router", "E", "T", "threads", "ratio", "quartiles", "ours us", "torch us"):
        shown.add_column(column, justify="right")
    for r in results:
        shown.add_row(r.router, str(r.experts), str(r.tokens), str(r.threads), f"{r.ratio:.3f}",
                      f"{r.ratio_low:.2f}-{r.ratio_high:.2f}", f"{r.ours_us:.1f}", f"{r.torch_us:.1f}")  # fmt: skip
    return shown


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--routers", default=",".join(ROUTERS))
    parser.add_argument("--experts", type=_numbers, default=EXPERTS)
    parser.add_argument("--tokens", type=_numbers, default=TOKENS)
    parser.add_argument("--threads", type=_numbers, default=THREADS)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--format", choices=("text", "json"), default="text")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    results = [
        bench(name, experts, tokens, threads, options.rounds)
        for name in options.routers.split(",")
        for experts in options.experts
        for tokens in options.tokens
        for threads in options.threads
    ]
    if options.format == "json":
        document = {"torch": torch.__version__, "load": load, "results": [asdict(result) for result in results]}
        print(json.dumps(document, indent=1))
    else:
        Console(width=80).print(table(results))


if __name__ == "__main__":
    main()
