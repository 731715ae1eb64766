"""mxfp4_expert_linear against a plain statement of it, by both providers: numbers, layouts, edges, what stays alone."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from mxfp4_cases import FLOATS, PROVIDERS, Inputs, bits, close, expected, make, power, run

import kernelmap.ops
from kernelmap.ops import mxfp4_expert_linear

both = pytest.mark.parametrize("provider", PROVIDERS)


def one_value(code: int, scale: int, dtype: torch.dtype = torch.float32) -> Inputs:
    """One code in an expert of zeros, one token of ones: the result is the decoded value."""
    packed = torch.zeros(1, 1, 1, 16, dtype=torch.uint8)
    packed[0, 0, 0, 3] = code << 4
    ones = torch.ones(1, 1, dtype=dtype)
    scales = torch.full((1, 1, 1), scale, dtype=torch.uint8)
    selected = torch.zeros(1, 1, dtype=torch.int64)
    return Inputs(ones.expand(1, 32), packed, scales, selected, ones, torch.zeros_like(ones))


def test_signature() -> None:
    names = list(inspect.signature(mxfp4_expert_linear).parameters)
    assert names == [
        "latent_tokens", "packed_weights", "scale_bytes", "selected_experts", "mixture_weights", "shared_output",
    ]  # fmt: skip
    assert kernelmap.ops.__all__ == ["mxfp4_expert_linear"] and "mxfp4_expert_linear" in dir(kernelmap.ops)
    with pytest.raises(AttributeError, match="no attribute 'mxfp4'"):
        _ = kernelmap.ops.__getattr__("mxfp4")


@both
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("tokens", [1, 3, 4, 19])
def test_numbers(provider: str, dtype: torch.dtype, tokens: int) -> None:
    """Token counts on both sides of the numba variants' border; output sizes that leave tails in tiles."""
    for seed, (experts, out, groups, slots) in enumerate([(5, 7, 2, 2), (3, 33, 1, 3), (1, 16, 5, 1), (9, 1, 3, 4)]):
        given = make(dtype, tokens=tokens, experts=experts, out=out, groups=groups, slots=slots, seed=seed)
        result = run(provider, given)
        assert result.dtype == dtype and result.shape == (tokens, out) and result.is_contiguous()
        assert close(given, result)


@both
@pytest.mark.parametrize("mixture", FLOATS, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_mixture_weights_of_another_dtype(provider: str, dtype: torch.dtype, mixture: torch.dtype) -> None:
    given = make(dtype)
    given = given.but(mixture_weights=given.mixture_weights.to(mixture), selected_experts=given.selected_experts.int())
    assert close(given, run(provider, given))


@both
def test_worked_case(provider: str) -> None:
    """Packed byte 0x21 with scale byte 128 decodes to 1.0, 2.0."""
    given = one_value(0, 128)
    packed = torch.zeros_like(given.packed_weights)
    packed[..., 0] = 0x21
    for place, value in ((0, 1.0), (1, 2.0), (2, 0.0)):
        x = torch.zeros(1, 32)
        x[0, place] = 1
        assert run(provider, given.but(packed_weights=packed, latent_tokens=x)).item() == value


@both
@pytest.mark.parametrize("scale", [0, 1, 126, 127, 128, 252, 253, 254, 255])
def test_scale_bytes(provider: str, scale: int) -> None:
    """fp32 and fp64 tokens give each value exactly: 2**-128 for 0, infinite beyond fp32, NaN for 255."""
    codes = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
    for code, value in enumerate(codes):
        for sign in (0, 8):
            exact = torch.tensor([[(-value if sign else value) * power(scale)]], dtype=torch.float64)
            for dtype in (torch.float32, torch.float64):
                for tokens in (1, 4):
                    given = one_value(code | sign, scale, dtype)
                    given = given.but(
                        latent_tokens=given.latent_tokens.expand(tokens, 32),
                        selected_experts=given.selected_experts.expand(tokens, 1),
                        mixture_weights=given.mixture_weights.expand(tokens, 1),
                        shared_output=given.shared_output.expand(tokens, 1),
                    )
                    want = exact.to(dtype).expand(tokens, 1)
                    assert torch.equal(run(provider, given).nan_to_num(7e7), want.nan_to_num(7e7))


@both
def test_largest_scale_overflows_in_fp32_only(provider: str) -> None:
    for code, overflows in ((3, False), (4, True), (7, True)):
        assert run(provider, one_value(code, 254)).isinf().item() is overflows
        assert run(provider, one_value(code, 254, torch.float64)).isfinite().item()
    assert run(provider, one_value(4, 254).but(latent_tokens=torch.full((1, 32), 2.0**-100))).isinf().item()


@both
@pytest.mark.parametrize("tokens", [1, 5])
def test_negative_zero(provider: str, tokens: int) -> None:
    """Weights, tokens and shared output of negative zeros add nothing and make no NaN."""
    given = make(tokens=tokens)
    zeros = given.but(packed_weights=torch.full_like(given.packed_weights, 0x88))
    assert torch.equal(run(provider, zeros), given.shared_output)
    still = given.but(latent_tokens=torch.full_like(given.latent_tokens, -0.0))
    assert torch.equal(run(provider, still), given.shared_output)
    bare = given.but(selected_experts=given.selected_experts[:, :0], mixture_weights=given.mixture_weights[:, :0])
    kept = bare.but(shared_output=torch.full_like(given.shared_output, -0.0))
    assert run(provider, kept).signbit().all()


@both
@pytest.mark.parametrize("dtype", FLOATS[2:], ids=str)
def test_rounds_once(provider: str, dtype: torch.dtype) -> None:
    """Two terms of 3/8 of a step each make one step; a sum in the tokens' own dtype would lose one after the other."""
    eps = torch.finfo(dtype).eps
    given = one_value(2, 127, dtype).but(
        shared_output=torch.ones(1, 1, dtype=dtype),
        mixture_weights=torch.full((1, 2), 0.375 * eps, dtype=dtype),
        selected_experts=torch.zeros(1, 2, dtype=torch.int64),
    )
    assert run(provider, given).item() == 1 + eps


@both
@pytest.mark.parametrize("tokens", [2, 6])
def test_repeated_experts_add_up(provider: str, tokens: int) -> None:
    given = make(torch.float64, tokens=tokens, slots=3)
    same = given.but(selected_experts=torch.full_like(given.selected_experts, 2))
    assert close(same, run(provider, same))
    once = same.but(
        selected_experts=same.selected_experts[:, :1], mixture_weights=same.mixture_weights.sum(1, keepdim=True)
    )
    torch.testing.assert_close(run(provider, same), run(provider, once), rtol=1e-12, atol=1e-12)


@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("flat", [False, True])
def test_layouts(provider: str, dtype: torch.dtype, flat: bool) -> None:
    """Packed as four axes or three, every argument strided in turn: the same bytes as from plain tensors."""
    for tokens in (2, 8):
        given = make(dtype, tokens=tokens)
        plain = bits(mxfp4_expert_linear(*given)) if provider == PROVIDERS[0] else bits(run(provider, given))
        for name, tensor in vars(given).items():
            turned = tensor.transpose(0, -1).contiguous().transpose(0, -1)
            stepped = torch.stack([tensor, torch.zeros_like(tensor)], dim=-1)[..., 0]
            spread = torch.cat([tensor, tensor], dim=0)[: len(tensor)]
            gaps = torch.stack([tensor, tensor], dim=1)[:, 0]
            for other in (turned, stepped, spread, gaps):
                changed = given.but(**{name: other})
                if provider == PROVIDERS[1]:
                    assert bits(run(provider, changed)) == plain
                elif flat and name != "packed_weights":
                    changed = changed.but(packed_weights=given.packed_weights.flatten(2))
                    assert bits(mxfp4_expert_linear(*changed)) == plain
                else:
                    assert bits(mxfp4_expert_linear(*changed)) == plain
        stepped = torch.stack([given.packed_weights.flatten(2)] * 2, dim=-1)[..., 0]
        assert bits(mxfp4_expert_linear(*given.but(packed_weights=stepped))) == bits(mxfp4_expert_linear(*given))


@both
def test_empty_sizes(provider: str) -> None:
    given = make(torch.float16)
    none = given.but(
        latent_tokens=given.latent_tokens[:0], selected_experts=given.selected_experts[:0],
        mixture_weights=given.mixture_weights[:0], shared_output=given.shared_output[:0],
    )  # fmt: skip
    result = run(provider, none)
    assert result.shape == (0, 7) and result.dtype == torch.float16
    narrow = given.but(
        packed_weights=given.packed_weights[:, :0], scale_bytes=given.scale_bytes[:, :0],
        shared_output=given.shared_output[:, :0],
    )  # fmt: skip
    assert run(provider, narrow).shape == (3, 0)
    experts = given.but(
        packed_weights=given.packed_weights[:0], scale_bytes=given.scale_bytes[:0],
        selected_experts=given.selected_experts[:, :0], mixture_weights=given.mixture_weights[:, :0],
    )  # fmt: skip
    assert torch.equal(run(provider, experts), given.shared_output)


@both
@pytest.mark.parametrize("tokens", [2, 9])
def test_unselected_experts_change_nothing(provider: str, tokens: int) -> None:
    given = make(tokens=tokens, experts=6)
    given = given.but(selected_experts=given.selected_experts % 3)
    poisoned = given.scale_bytes.clone()
    poisoned[3:] = 255
    result = run(provider, given.but(scale_bytes=poisoned))
    assert result.isfinite().all() and bits(result) == bits(run(provider, given))


@both
@pytest.mark.parametrize("tokens", [2, 9])
def test_nothing_is_written(provider: str, tokens: int) -> None:
    """Byte for byte, also what lies between the elements of strided arguments."""
    for dtype in FLOATS:
        given = make(dtype, tokens=tokens)
        spread = {name: torch.stack([tensor, tensor + 1], dim=-1) for name, tensor in vars(given).items()}
        before = {name: bits(tensor) for name, tensor in spread.items()}
        result = run(provider, Inputs(**{name: tensor[..., 0] for name, tensor in spread.items()}))
        assert {name: bits(tensor) for name, tensor in spread.items()} == before
        assert result.untyped_storage().data_ptr() not in {t.untyped_storage().data_ptr() for t in spread.values()}


@both
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_threads_change_nothing(provider: str, dtype: torch.dtype) -> None:
    threads = torch.get_num_threads()
    try:
        for tokens in (1, 3, 40):
            given = make(dtype, tokens=tokens, experts=4, out=70, groups=9, slots=3)
            results = []
            for count in (1, 2, 3, 8):
                torch.set_num_threads(count)
                results.append(bits(run(provider, given)))
            assert len(set(results)) == 1
    finally:
        torch.set_num_threads(threads)


GUARDED = """
import ctypes, mmap, sys
import torch
from kernelmap.ops.calling import call
from mxfp4_cases import GROUP, chooser

PAGE, provider, tokens = mmap.PAGESIZE, sys.argv[1], int(sys.argv[2])
out, groups, experts = PAGE // 32, 2, 5
packed, scales = mmap.mmap(-1, experts * PAGE), mmap.mmap(-1, experts * PAGE)
protect = ctypes.CDLL(None, use_errno=True).mprotect
protect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
for area in (packed, scales):
    area[:] = bytes([100]) * len(area)
    base = ctypes.addressof(ctypes.c_char.from_buffer(area))
    for expert in (0, 2, 4):
        assert protect(base + expert * PAGE, PAGE, 0) == 0
given = dict(
    latent_tokens=torch.ones(tokens, 64), selected_experts=torch.tensor([[3, 1]] * tokens),
    mixture_weights=torch.ones(tokens, 2), shared_output=torch.zeros(tokens, out),
    packed_weights=torch.frombuffer(packed, dtype=torch.uint8).view(experts, out, groups, 16),
    scale_bytes=torch.frombuffer(scales, dtype=torch.uint8).view(experts, PAGE)[:, : out * groups].unflatten(
        1, (out, groups)),
)
result = call(chooser(provider), GROUP, given, rows="T")["output"]
assert result.isfinite().all() and (result != 0).all()
print("read only what was selected")
"""


@both
@pytest.mark.skipif(sys.platform == "win32", reason="needs mprotect")
@pytest.mark.parametrize("tokens", [1, 6])
def test_unselected_experts_are_never_read(provider: str, tokens: int) -> None:
    """Their pages are forbidden to the process: one byte read would end it."""
    command = [sys.executable, "-c", GUARDED, provider, str(tokens)]
    folder = str(Path(__file__).parent)
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "read only what was selected" in done.stdout


def test_the_comparison_can_fail() -> None:
    given = make()
    result = run(PROVIDERS[0], given)
    result[1, 2] += 1e-4
    assert not close(given, result) and close(given, expected(given))
