"""From what Linux says about a CPU to LLVM's names.

Own tables, because asking llvmlite costs 0.2 s and kernelmap's static commands may not import it; a test compares the
features with ``llvmlite.binding.get_host_cpu_features`` on the machine that runs it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kernelmap.vocabulary import ISA_FEATURES

_RENAMED: Mapping[str, Mapping[str, str]] = {
    "x86_64": {
        "pni": "sse3", "sse4_1": "sse4.1", "sse4_2": "sse4.2", "bmi1": "bmi", "avx_vnni": "avxvnni",
        "avx_vnni_int8": "avxvnniint8", "avx_ifma": "avxifma", "avx512_vbmi2": "avx512vbmi2",
        "avx512_vnni": "avx512vnni", "avx512_bitalg": "avx512bitalg", "avx512_vpopcntdq": "avx512vpopcntdq",
        "avx512_bf16": "avx512bf16", "avx512_fp16": "avx512fp16", "amx_tile": "amx-tile", "amx_int8": "amx-int8",
        "amx_bf16": "amx-bf16",
    },
    "aarch64": {
        "asimd": "neon", "fp": "fp-armv8", "asimdhp": "fullfp16", "asimddp": "dotprod", "atomics": "lse",
    },
}  # fmt: skip
"""Linux's spelling in /proc/cpuinfo (arch/x86/include/asm/cpufeatures.h, arch/arm64/kernel/cpuinfo.c) to LLVM's, where
the two differ."""

_ARM = frozenset({"neon", "fp-armv8", "fullfp16", "dotprod", "i8mm", "bf16", "sve", "sve2", "sme", "sme2", "lse"})
_FEATURES: Mapping[str, frozenset[str]] = {"aarch64": _ARM, "x86_64": ISA_FEATURES - _ARM, "other": frozenset()}
"""Apart, because names clash: ``sme`` is memory encryption on AMD's CPUs and the matrix extension on Arm's."""

BASELINE: Mapping[str, tuple[str, ...]] = {"x86_64": ("sse2",), "aarch64": ("fp-armv8", "neon"), "other": ()}
"""What every 64-bit CPU of the architecture has, also where nothing can be probed."""

_AMD_FAMILIES = {0x17: "znver2", 0x19: "znver3", 0x1A: "znver5"}
_INTEL_MODELS: Mapping[str, tuple[int, ...]] = {
    "haswell": (0x3C, 0x3F, 0x45, 0x46),
    "broadwell": (0x3D, 0x47, 0x4F, 0x56),
    "skylake": (0x4E, 0x5E, 0x8E, 0x9E, 0xA5, 0xA6),
    "icelake-client": (0x7D, 0x7E),
    "icelake-server": (0x6A, 0x6C),
    "tigerlake": (0x8C, 0x8D),
    "alderlake": (0x97, 0x9A),
    "raptorlake": (0xB7, 0xBA, 0xBF),
    "meteorlake": (0xAA, 0xAC),
    "sapphirerapids": (0x8F,),
    "emeraldrapids": (0xCF,),
    "graniterapids": (0xAD,),
}
_ARM_PARTS = {
    0xD08: "cortex-a72", 0xD0B: "cortex-a76", 0xD0C: "neoverse-n1", 0xD40: "neoverse-v1", 0xD49: "neoverse-n2",
    0xD4F: "neoverse-v2", 0xD84: "neoverse-v3",
}  # fmt: skip
_ARM_LIMITED = 0x41
_LEVEL_4 = {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_LEVEL_3 = {"avx2", "bmi", "bmi2", "f16c", "fma"}


def isa_features(arch: str, flags: Iterable[str]) -> tuple[str, ...]:
    """The features of the architecture among Linux's flags, by LLVM's names, sorted."""
    renamed = _RENAMED.get(arch, {})
    found = {renamed.get(flag, flag) for flag in flags}
    return tuple(sorted((found & _FEATURES[arch]) | set(BASELINE[arch])))


def cpu_name(arch: str, facts: Mapping[str, str], isa: Iterable[str]) -> str:
    """LLVM's name of the CPU from one processor's entry of /proc/cpuinfo; a level or ``generic`` if it is not known."""
    features = set(isa)
    if arch == "aarch64":
        part = _number(facts.get("CPU part"))
        known = _number(facts.get("CPU implementer")) == _ARM_LIMITED
        return _ARM_PARTS.get(part, "generic") if known else "generic"
    if arch != "x86_64":
        return "generic"
    family, model = _number(facts.get("cpu family")), _number(facts.get("model"))
    if facts.get("vendor_id") == "AuthenticAMD" and family in _AMD_FAMILIES:
        return _amd(family, model, features)
    if facts.get("vendor_id") == "GenuineIntel" and family == 6:
        found = _intel(model, features)
        if found:
            return found
    if features >= _LEVEL_4:
        return "x86-64-v4"
    return "x86-64-v3" if features >= _LEVEL_3 else "x86-64"


def _amd(family: int, model: int, features: set[str]) -> str:
    """Family 17h is Zen 1 before model 30h; family 19h is both Zen 3 and Zen 4, which alone has AVX-512."""
    if family == 0x17 and model < 0x30:
        return "znver1"
    if family == 0x19 and "avx512f" in features:
        return "znver4"
    return _AMD_FAMILIES[family]


def _intel(model: int, features: set[str]) -> str:
    if model == 0x55:  # one model number for three generations
        if "avx512bf16" in features:
            return "cooperlake"
        return "cascadelake" if "avx512vnni" in features else "skylake-avx512"
    return next((name for name, models in _INTEL_MODELS.items() if model in models), "")


def _number(text: str | None) -> int:
    try:
        return int(text or "", 0)
    except ValueError:
        return -1
