"""What mxfp4_expert_linear refuses: every problem at once, in words that name argument, expected and found."""

from __future__ import annotations

import pytest
import torch
from mxfp4_cases import PROVIDERS, Inputs, make, run

from kernelmap.errors import KernelInputError
from kernelmap.ops import mxfp4_expert_linear


def refusals(given: Inputs) -> list[tuple[str, str]]:
    with pytest.raises(KernelInputError) as caught:
        mxfp4_expert_linear(*given)
    assert isinstance(caught.value, ValueError)
    return [(problem.code, problem.message) for problem in caught.value.diagnostics]


@pytest.mark.parametrize("width", [0, 16, 33, 48])
def test_width(width: int) -> None:
    ((code, message),) = refusals(make().but(latent_tokens=torch.zeros(3, width)))
    assert code == "KM552" and message == f"latent_tokens are {width} wide: the width is a positive multiple of 32"


@pytest.mark.parametrize(
    ("name", "tensor", "expected"),
    [
        ("latent_tokens", torch.zeros(3, 32), "[T, 32 * G] = [3, 64]"),
        ("latent_tokens", torch.zeros(1, 3, 64), "[T, 32 * G]"),
        ("packed_weights", torch.zeros(5, 7, 3, 16, dtype=torch.uint8), "[3, 32 * G]"),
        ("packed_weights", torch.zeros(5, 7, 2, 15, dtype=torch.uint8), "[5, 7, 2, 16]"),
        ("packed_weights", torch.zeros(5, 7, 30, dtype=torch.uint8), "[E, N, G, 16]"),
        ("packed_weights", torch.zeros(7, 32, dtype=torch.uint8), "[E, N, G, 16]"),
        ("scale_bytes", torch.zeros(5, 7, 3, dtype=torch.uint8), "[E, N, G] = [5, 7, 2]"),
        ("scale_bytes", torch.zeros(5, 1, 2, dtype=torch.uint8), "[E, N, G] = [5, 7, 2]"),
        ("scale_bytes", torch.zeros(5, 14, dtype=torch.uint8), "[E, N, G] = [5, 7, 2]"),
        ("selected_experts", torch.zeros(4, 2, dtype=torch.int64), "[T, S] = [3, 2]"),
        ("mixture_weights", torch.zeros(3, 1), "[T, S] = [3, 2]"),
        ("shared_output", torch.zeros(3, 8), "[5, 8, 2]"),
        ("shared_output", torch.zeros(2, 7), "[T, N] = [3, 7]"),
    ],
)
def test_shapes(name: str, tensor: torch.Tensor, expected: str) -> None:
    found = refusals(make().but(**{name: tensor}))
    assert {code for code, _ in found} == {"KM552"}
    shape = str(list(tensor.shape))
    assert any(expected.partition(" = ")[2] in message or expected in message for _, message in found), found
    assert any(shape in message for _, message in found) or len(found) > 1


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("latent_tokens", torch.int32), ("latent_tokens", torch.float64), ("packed_weights", torch.int8),
        ("scale_bytes", torch.float32), ("selected_experts", torch.float32), ("selected_experts", torch.int16),
        ("mixture_weights", torch.int64), ("shared_output", torch.bfloat16), ("shared_output", torch.complex64),
    ],
)  # fmt: skip
def test_dtypes(name: str, dtype: torch.dtype) -> None:
    given = make()
    found = refusals(given.but(**{name: vars(given)[name].to(dtype)}))
    assert {code for code, _ in found} == {"KM551"}
    assert any(name in message for _, message in found)


def test_all_problems_at_once() -> None:
    given = make()
    found = refusals(
        given.but(
            scale_bytes=given.scale_bytes.float(), mixture_weights=given.mixture_weights[:2],
            shared_output=given.shared_output.double(),
        )
    )  # fmt: skip
    assert sorted(code for code, _ in found) == ["KM551", "KM551", "KM552"]


def test_devices() -> None:
    """A tensor elsewhere is refused; here one without data stands for it."""
    given = make()
    with pytest.raises(KernelInputError) as caught:
        run(PROVIDERS[0], given.but(scale_bytes=given.scale_bytes.to("meta")))
    (problem,) = caught.value.diagnostics
    assert problem.code == "KM553" and "scale_bytes is not where latent_tokens is: meta where cpu" in problem.message


@pytest.mark.parametrize("tokens", [3, 8])
@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("index", [-1, 5, 2**40])
def test_expert_out_of_range(provider: str, tokens: int, index: int) -> None:
    given = make(tokens=tokens)
    selected = given.selected_experts.clone()
    selected[2, 1] = index
    given = given.but(selected_experts=selected)
    assert refusals(given) == [("KM554", f"selected_experts[2, 1] is {index}, and there are 5 experts")]
    with pytest.raises(KernelInputError, match=f"{provider} refuses token 2"):
        run(provider, given)


def test_no_tensor() -> None:
    given = make()
    with pytest.raises(RuntimeError, match="latent_tokens"):
        mxfp4_expert_linear(given.latent_tokens.numpy(), *list(given)[1:])
