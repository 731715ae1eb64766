"""Quantized GEMM against ggml: time ratios, integer throughput and memory speed, in interleaved rounds of one process.

    python tools/bench_gemm.py --formats q4_k,q6_k --tokens 1,8,512 --shapes 2048x512 --json result.json

"in cache" repeats one weight matrix, "streamed" cycles through copies that exceed the last-level cache, on both sides.
Ratios are ours / the faster of ggml's default and repacked buffers, from medians. Weights are random fp32 quantized by
ggml, so both sides multiply the same bytes. Ours is called through bind: model file, circuit, resolve, the bound op.
Peak and memory speed are measured first (tools/limits.py) and printed as fractions.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

import peer
from bound import bound_gemm, call_of
from kernelmap.bind import BoundOp
from kernelmap.vocabulary import FORMATS as STORAGE
from kernelmap.vocabulary import Phase
from kernelmap_providers.simd.target import host_form
from limits import limits

FORMATS = ("q4_k", "q5_k", "q6_k", "q8_0", "q5_1", "mxfp4")
FLOATS = ("fp16", "bf16")
"""Nothing to pack: one form of ours, by the 8-lane rule."""
TOKENS = (1, 2, 4, 8, 32, 128, 512)
SHAPES = {"2048x512": (2048, 512), "512x2048": (512, 2048), "2560x2048": (2560, 2048), "2560x10240": (2560, 10240),
          "10240x2560": (10240, 2560)}  # fmt: skip
"""K x N: the experts of Qwen3.5-35B-A3B (gate or up, down) and projections of Gemma3-4B."""
STREAM_BYTES = 160 << 20
ROUND_SECONDS = 0.02
Call = Callable[[], Any]


@dataclass(frozen=True)
class Result:
    """One measured case; times are medians in microseconds."""

    format: str
    k: int
    n: int
    tokens: int
    threads: int
    streamed: bool
    times: dict[str, float]
    ratio: float
    """Packed, or our form of floats / the faster ggml path."""
    gmacs: float
    weight_gb_per_s: float


class Case:
    """One format and shape: weights on both sides, in enough copies."""

    def __init__(self, ggml: peer.Ggml, name: str, k: int, n: int, copies: int) -> None:
        self.ggml, self.name, self.k, self.n = ggml, name, k, n
        rng = np.random.default_rng(0)
        rows = (rng.standard_normal((n, k)) * 0.05).astype(np.float32)
        self.stored = [ggml.quantize(name, rows)]
        self.stored += [self.stored[0].copy() for _ in range(copies - 1)]
        self.bound: dict[tuple[str, Phase], list[BoundOp]] = {}

    def providers(self, phase: Phase) -> dict[str, str]:
        """Our forms of a phase: packed, weights as stored for many tokens, and for one; or that of floats."""
        if self.name in FLOATS:
            return {"floats": f"{'gemm_nt' if phase is Phase.PREFILL else 'gemv'}_{self.name}"}
        act = STORAGE[self.name].act
        kind = "gemm" if phase is Phase.PREFILL else "gemv"
        packed = f"{kind}_{self.name}_{act}_packed_x8"
        if self.name == "q4_k" and phase is Phase.PREFILL:
            packed = "gemm_q4_k_q8_k_packed_vnni_x8_compact_order_rows4"
        many, one = f"gemm_nt_{self.name}_{act}", f"gemv_{self.name}_{act}"
        if self.name == "q5_1":
            many, one = "gemm_nt_q5_1", "gemv_q5_1"
        return {"packed": packed, "rows4": many, "per_row": one}

    def ours(self, x: npt.NDArray[np.float32], threads: int) -> dict[str, list[Call]]:
        """Our forms, one call for every copy of the weights."""
        y = np.empty((len(x), self.n), np.float32)
        phase = Phase.PREFILL if len(x) > 1 else Phase.DECODE
        calls: dict[str, list[Call]] = {}
        for form, provider in self.providers(phase).items():
            at = {"rows4": Phase.PREFILL, "per_row": Phase.DECODE}.get(form, phase)
            if (provider, at) not in self.bound:
                self.bound[provider, at] = bound_gemm(self.name, self.stored, self.k, provider, at)
            calls[form] = [call_of(op, x, y, threads) for op in self.bound[provider, at]]
        return calls

    def weight_bytes(self) -> int:
        """Bytes of one weight as our first form reads it."""
        form = next(ops for (name, _), ops in self.bound.items() if "packed" in name or self.name in FLOATS)
        return int(form[0].weights["weight"].nbytes)

    def theirs(self, x: npt.NDArray[np.float32], threads: int, keep: list[peer.MatMul]) -> dict[str, list[Call]]:
        """ggml's buffers; graphs go to ``keep``, to be freed by the caller."""
        calls: dict[str, list[Call]] = {}
        for buffer, repack in (("ggml", False), ("ggml_repack", True)):
            for weight in self.stored:
                graph = self.ggml.matmul(self.name, weight, self.k, len(x), repack)
                if graph is None:
                    break
                graph.set_input(x)
                keep.append(graph)
                calls.setdefault(buffer, []).append(graph.runner(threads))
        return calls


def measured(calls: dict[str, list[Call]], rounds: int, quiet: float) -> dict[str, float]:
    """Median seconds a call of every form, in interleaved rounds."""
    times: dict[str, list[float]] = {form: [] for form in calls}
    for form, group in calls.items():
        start = time.perf_counter()
        for call in group[:1] * 2:
            call()
        times[form].append((time.perf_counter() - start) / 2)
    repeats = {form: max(1, int(ROUND_SECONDS / max(times[form][0], 1e-7))) for form in calls}
    times = {form: [] for form in calls}
    for _ in range(rounds):
        for form, group in calls.items():
            time.sleep(quiet)
            group[0]()
            start = time.perf_counter()
            for index in range(repeats[form]):
                group[index % len(group)]()
            times[form].append((time.perf_counter() - start) / repeats[form])
    return {form: statistics.median(values) for form, values in times.items()}


def bench(case: Case, tokens: int, threads: int, rounds: int) -> Result:
    """All forms at one number of tokens."""
    x = np.random.default_rng(1).standard_normal((tokens, case.k)).astype(np.float32)
    graphs: list[peer.MatMul] = []
    calls = {**case.theirs(x, threads, graphs), **case.ours(x, threads)}
    times = measured(calls, rounds, peer.QUIET_SECONDS if threads > 1 else 0)
    for graph in graphs:
        graph.free()
    ours, best = (
        times["packed" if "packed" in times else "floats"],
        min(value for form, value in times.items() if form.startswith("ggml")),
    )
    return Result(
        case.name, case.k, case.n, tokens, threads, len(case.stored) > 1,
        {form: round(value * 1e6, 2) for form, value in times.items()},
        round(ours / best, 3), round(tokens * case.k * case.n / ours / 1e9, 1),
        round(case.weight_bytes() / ours / 1e9, 1),
    )  # fmt: skip


def table(results: list[Result], most: dict[str, Any]) -> Table:
    """The results as people read them."""
    shown = Table(title="ours / the faster ggml path", show_lines=False)
    for column in ("format", "K x N", "M", "threads", "weights", "ratio", "ours us", "ggml us", "repacked us",
                   "stored / ggml", "per row / ggml", "GMAC/s", "of peak", "GB/s", "of read"):  # fmt: skip
        shown.add_column(column, justify="right")
    for r in results:
        times, forms = r.times, ("packed" if "packed" in r.times else "floats", "ggml", "ggml_repack")
        stored = [f"{times[form] / times['ggml']:.2f}" if form in times else "" for form in ("rows4", "per_row")]
        peak = f"{r.gmacs / (most['gmacs_1'] * r.threads):.0%}" if r.format not in FLOATS else ""
        read = f"{r.weight_gb_per_s / most[f'read_gb_{min(r.threads, 2)}']:.0%}" if r.streamed else ""
        shown.add_row(
            r.format, f"{r.k}x{r.n}", str(r.tokens), str(r.threads), "streamed" if r.streamed else "in cache",
            f"{r.ratio:.3f}", *(f"{times.get(form, 0):.1f}" for form in forms), *stored, f"{r.gmacs:.0f}", peak,
            f"{r.weight_gb_per_s:.1f}", read,
        )  # fmt: skip
    return shown


def host() -> dict[str, Any]:
    """What the figures were taken on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {"cpu": names[0] if names else platform.machine(), "cores": os.cpu_count(), "form": host_form().name,
            "date": datetime.now(UTC).isoformat(timespec="seconds"), "python": platform.python_version()}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--formats", default=",".join(FORMATS), help=f"also {', '.join(FLOATS)}")
    parser.add_argument("--shapes", default="2048x512,512x2048", help=f"known: {', '.join(SHAPES)}; any KxN works")
    parser.add_argument("--tokens", default=",".join(map(str, TOKENS)))
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--streamed", action="store_true", help="cycle through more weights than any cache holds")
    parser.add_argument("--libraries", type=Path, help="where libggml-cpu is (default: llama-cpp-python's)")
    parser.add_argument("--json", type=Path, help="write the results here")
    options = parser.parse_args()
    ggml = peer.Ggml(peer.find_library_dir(options.libraries))
    most = limits()
    results: list[Result] = []
    for shape in options.shapes.split(","):
        k, n = map(int, shape.split("x"))
        for name in options.formats.split(","):
            copies = max(1, STREAM_BYTES // (n * ggml.row_bytes(name, k))) if options.streamed else 1
            case = Case(ggml, name, k, n, copies)
            for tokens in map(int, options.tokens.split(",")):
                for threads in map(int, options.threads.split(",")):
                    results.append(bench(case, tokens, threads, options.rounds))
    Console(width=180).print(table(results, most))
    if options.json:
        document = {"host": host(), "limits": most, "results": [asdict(result) for result in results]}
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
