"""The instruction that each machine gets, read from the machine code of whole GEMM tiles for named CPUs."""

from __future__ import annotations

import re

import llvmlite.binding as llvm
import pytest
from llvmlite import ir

from kernelmap_providers.gemm.panels import panel_shape
from kernelmap_providers.gemm.stored import STORED_FORMATS
from kernelmap_providers.packed.layouts import PACKED_FORMATS
from kernelmap_providers.simd.rows import row_form, rows_function
from kernelmap_providers.simd.target import FORMS, best_form
from kernelmap_providers.simd.tile import TileShape, tile_function

X86, ARM = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"
CPUS = {
    "haswell": (X86, "avx2"),
    "alderlake": (X86, "avxvnni"),
    "znver4": (X86, "avx512vnni"),
    "neoverse-v2": (ARM, "neon_dotprod"),
    "cortex-a72": (ARM, "portable"),
    "nehalem": (X86, "portable"),
}
EXPECTED = {
    "haswell": r"vpmaddubsw\s.*%ymm",
    "alderlake": r"\{vex\}\s+vpdpbusd\s.*%ymm",
    "znver4": r"vpdpbusd\s.*%zmm",
    "neoverse-v2": r"\bsdot\b",
    "cortex-a72": r"\bsmull2?\b",
    "nehalem": r"\bp(mullw|maddwd)\b",
}
FUSED = re.compile(r"\bv?f(n?m(add|sub)|ml[as])[0-9]*[sp]?[sd]?\b")


def assembly(module: ir.Module, triple: str, cpu: str) -> str:
    """Machine code of ``module`` for a CPU that need not be this one."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(triple).create_target_machine(cpu=cpu, opt=3)
    parsed = llvm.parse_assembly(str(module))
    parsed.verify()
    return machine.emit_assembly(parsed)


def test_every_form_is_some_cpu_here() -> None:
    assert {form for _, form in CPUS.values()} == set(FORMS)


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("layout", PACKED_FORMATS)
def test_packed_tile(cpu: str, layout: str) -> None:
    triple, name = CPUS[cpu]
    form = FORMS[name]
    module = ir.Module()
    module.triple = triple
    shape = TileShape(panel_shape(form).tokens[0], panel_shape(form).vectors)
    tile_function(module, PACKED_FORMATS[layout], form, shape).linkage = "external"
    code = assembly(module, triple, cpu)
    assert len(re.findall(EXPECTED[cpu], code)) >= 8, code[:2000]
    assert not FUSED.search(code), "the contract rounds every operation"


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("storage", STORED_FORMATS)
def test_row_kernel(cpu: str, storage: str) -> None:
    triple, name = CPUS[cpu]
    module = ir.Module()
    module.triple = triple
    rows_function(module, STORED_FORMATS[storage], row_form(FORMS[name]), 4).linkage = "external"
    code = assembly(module, triple, cpu)
    expected = EXPECTED[cpu] if cpu != "znver4" else r"vpdpbusd\s.*%ymm"
    assert len(re.findall(expected, code)) >= 8
    assert not FUSED.search(code)


def test_forms_match_the_cpus_features() -> None:
    """The form of each x86 row is what the features of such a machine select."""
    assert best_form({"avx2", "f16c", "fma", "bmi2"}).name == CPUS["haswell"][1]
    assert best_form({"avx2", "f16c", "avxvnni", "gfni"}).name == CPUS["alderlake"][1]
