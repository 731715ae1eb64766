"""The torch operator: registration, tracing and compilation, no gradient; and the package without torch."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from mxfp4_cases import FLOATS, bits, make

from kernelmap.errors import KernelmapError
from kernelmap.ops import mxfp4_expert_linear


def test_operator_passes_torchs_own_checks() -> None:
    operator = torch.ops.kernelmap.mxfp4_expert_linear.default
    for tokens in (1, 5):
        found = torch.library.opcheck(operator, tuple(make(torch.bfloat16, tokens=tokens)))
        assert set(found.values()) == {"SUCCESS"}
    assert "mutates" not in str(operator._schema) and not operator._schema.is_mutable


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled(backend: str) -> None:
    """One graph, no break, the same bytes; more operations around it, and other token counts."""

    @torch.compile(backend=backend, fullgraph=True)
    def block(*arguments: torch.Tensor) -> torch.Tensor:
        return mxfp4_expert_linear(*arguments).relu() * 2

    torch._dynamo.reset()
    for dtype in FLOATS[1:]:
        for tokens in (3, 6, 9):
            given = make(dtype, tokens=tokens)
            assert bits(block(*given)) == bits(mxfp4_expert_linear(*given).relu() * 2)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_in_a_process_that_never_called_it(backend: str) -> None:
    code = (
        "import torch, kernelmap.ops\n"
        "from kernelmap.ops import mxfp4_expert_linear\n"
        f"run = torch.compile(mxfp4_expert_linear, backend={backend!r}, fullgraph=True)\n"
        "u8 = torch.uint8\n"
        "print(run(torch.ones(1, 32), torch.full((1, 1, 16), 0x22, dtype=u8), torch.full((1, 1, 1), 127, dtype=u8),\n"
        "    torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, 1), torch.ones(1, 1)).item())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "33.0"


def test_shapes_without_data() -> None:
    result = mxfp4_expert_linear(*(tensor.to("meta") for tensor in make(torch.float16)))
    assert result.shape == (3, 7) and result.dtype == torch.float16 and result.device.type == "meta"


@pytest.mark.parametrize("name", ["latent_tokens", "mixture_weights", "shared_output"])
@pytest.mark.filterwarnings("ignore:Error detected in:UserWarning")
def test_backward_is_refused(name: str) -> None:
    given = make()
    leaf = vars(given)[name].clone().requires_grad_()
    result = mxfp4_expert_linear(*given.but(**{name: leaf}))
    assert bits(result) == bits(mxfp4_expert_linear(*given))
    with pytest.raises(KernelmapError, match=r"KM555.*forward only"):
        result.sum().backward()
    with torch.no_grad():
        assert not mxfp4_expert_linear(*given.but(**{name: leaf})).requires_grad


def without_torch(code: str) -> subprocess.CompletedProcess[str]:
    blocked = "import sys\nsys.modules['torch'] = None\n" + code
    return subprocess.run([sys.executable, "-c", blocked], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("way", ["kernelmap.ops", "kernelmap.ops.mxfp4"])
def test_a_missing_torch_is_named(way: str) -> None:
    done = without_torch(
        f"from {way} import mxfp4_expert_linear\n"
        "from kernelmap.errors import KernelmapError\n"
        "assert 'numba' not in sys.modules\n"
        "try:\n"
        "    mxfp4_expert_linear(*[None] * 6)\n"
        "except KernelmapError as error:\n"
        "    print(error, error.diagnostics[0].help)\n"
    )
    assert done.returncode == 0, done.stderr
    assert "error[KM550]" in done.stdout and "pip install 'kernelmap[torch]'" in done.stdout


def test_importing_the_package_loads_neither_torch_nor_kernels() -> None:
    code = "import sys, kernelmap.ops\nprint({'torch', 'numba', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "set()", done.stderr


def test_the_numba_provider_needs_no_torch() -> None:
    done = without_torch(
        "from kernelmap.certify.corpus import cases_of\n"
        "from kernelmap.certify.trial import Subject\n"
        "from kernelmap.registry import load_registry\n"
        "registry = load_registry()\n"
        "item = registry.maps['mxfp4_expert_linear_numba']\n"
        "contract = registry.contracts[item.selection.equivalence_group]\n"
        "for variant in item.impl.variants:\n"
        "    for case in cases_of(contract, item, variant, seed=1, isa=(), most=2):\n"
        "        assert not Subject(item, variant, case).trial(case.expected(), 2).faults\n"
        "        print('ran', variant.name)\n"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("ran fused") == 2 and done.stdout.count("ran tiles") == 2
