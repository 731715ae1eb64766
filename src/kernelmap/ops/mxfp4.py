"""Routed experts in the MXFP4 layout of safetensors files, on torch tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kernelmap.errors import Diagnostic, KernelmapError
from kernelmap.ops.arguments import OpInputError
from kernelmap.ops.calling import call
from kernelmap.ops.selection import default_chooser

if TYPE_CHECKING:
    from torch import Tensor

GROUP = "mxfp4_interleaved_float_expert_linear_shared_add"
NAME = "kernelmap::mxfp4_expert_linear"
PORTS = (
    "latent_tokens", "packed_weights", "scale_bytes", "selected_experts", "mixture_weights", "shared_output",
)  # fmt: skip
"""In the order of the function's parameters."""


def mxfp4_expert_linear(
    latent_tokens: Tensor,
    packed_weights: Tensor,
    scale_bytes: Tensor,
    selected_experts: Tensor,
    mixture_weights: Tensor,
    shared_output: Tensor,
) -> Tensor:
    """``y_t = shared_t + sum over selected e of p_te * W_e x_t``, weights in MXFP4; a new tensor ``[T, out]``.

    latent_tokens ``[T, K]`` and shared_output ``[T, out]``: fp64, fp32, fp16 or bf16, one dtype, that of the result.
    K is a positive multiple of 32, G = K / 32. packed_weights uint8 ``[E, out, G, 16]`` or ``[E, out, 16 G]``, two E2M1
    codes a byte, low nibble first. scale_bytes uint8 ``[E, out, G]``, E8M0: 2**(s - 127), NaN for 255. selected_experts
    int32 or int64 ``[T, S]``, repeats allowed; mixture_weights ``[T, S]`` of any of the four float dtypes.

    fp64 tokens decode and accumulate in fp64, all others in fp32, cast once at the end. Experts that no token selected
    are not decoded, and nothing is written. Any device, strides and number of threads; works under torch.compile;
    forward only. The provider is chosen by kernelmap's resolver once per device, dtypes and dims.

    Raises KernelmapError: OpInputError (also a ValueError) for unfit arguments (KM551 to KM554), NoProviderError where
    no provider is eligible, KM550 without torch, KM555 where a gradient is asked for.
    """
    return _operator(latent_tokens, packed_weights, scale_bytes, selected_experts, mixture_weights, shared_output)  # type: ignore[no-any-return]


def register() -> None:
    """Registers the torch operator ``kernelmap::mxfp4_expert_linear``, once; without torch nothing happens.

    Done when ``kernelmap.ops`` hands the function out, not in its first call, which torch.compile may be tracing.
    """
    global _operator
    if _operator is not _unregistered:
        return
    try:
        import torch
    except ImportError:
        return
    schema = f"({', '.join(f'Tensor {name}' for name in PORTS)}) -> Tensor"
    operator: Any = torch.library.custom_op(NAME, _compute, mutates_args=(), schema=schema)
    operator.register_fake(_shape_only)
    operator.register_autograd(_no_gradient)
    _operator = operator


def _unregistered(*tensors: Tensor) -> Tensor:
    """Stands in for the operator until it is registered."""
    register()
    if _operator is _unregistered:
        help = "install the extra that brings it: pip install 'kernelmap[torch]'"
        raise KernelmapError(Diagnostic("KM550", "kernelmap.ops needs torch, which is not installed", help=help))
    return _operator(*tensors)  # type: ignore[no-any-return]


_operator: Callable[..., Any] = _unregistered


def _compute(*tensors: Tensor) -> Tensor:
    """The operator's kernel for every device."""
    given = dict(zip(PORTS, tensors, strict=True))
    if problems := list(_width_problems(given)):
        raise OpInputError(problems)
    packed = given["packed_weights"]
    if packed.dim() == 3 and packed.shape[2] % 16 == 0:
        given["packed_weights"] = packed.reshape(*packed.shape[:2], packed.shape[2] // 16, 16)
    try:
        return call(default_chooser(), GROUP, given, rows="T")["output"]
    except OpInputError as error:
        raise OpInputError([_located(problem, given) for problem in error.diagnostics]) from None


def _width_problems(given: Mapping[str, Tensor]) -> Iterator[Diagnostic]:
    shape = tuple(given["latent_tokens"].shape)
    if len(shape) == 2 and (shape[1] == 0 or shape[1] % 32):
        message = f"latent_tokens are {shape[1]} wide: the width is a positive multiple of 32"
        yield Diagnostic("KM552", message, expected="[T, 32 * G]", found=str(list(shape)))


def _located(problem: Diagnostic, given: Mapping[str, Tensor]) -> Diagnostic:
    """A refused row's problem with the index that is out of range."""
    if problem.code != "KM554":
        return problem
    selected, experts = given["selected_experts"], given["packed_weights"].shape[0]
    token, slot = ((selected < 0) | (selected >= experts)).nonzero()[0].tolist()
    message = f"selected_experts[{token}, {slot}] is {int(selected[token, slot])}, and there are {experts} experts"
    return replace(problem, message=message, expected=f"0 to {experts - 1}", help="")


def _shape_only(*tensors: Tensor) -> Tensor:
    """The result's dtype, device and shape, for tracing."""
    given = dict(zip(PORTS, tensors, strict=True))
    return given["latent_tokens"].new_empty(given["shared_output"].shape)


def _no_gradient(_context: Any, *_gradients: Tensor) -> None:
    """Refuses every backward pass."""
    message = f"{NAME} is forward only: it has no gradient"
    help = "call it under torch.no_grad() or torch.inference_mode(), or detach its inputs"
    raise KernelmapError(Diagnostic("KM555", message, help=help))
