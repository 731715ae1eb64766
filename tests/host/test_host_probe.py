"""The host probe: this machine against LLVM, and made-up machines as file trees."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from kernelmap.host import probe_host
from kernelmap.host.cgroups import Limits, cgroup_limits
from kernelmap.host.cpu import cpu_name, isa_features
from kernelmap.host.probe import probe_linux
from kernelmap.vocabulary import ISA_FEATURES


def test_features_are_those_that_llvm_sees() -> None:
    binding = pytest.importorskip("llvmlite.binding")
    seen = {name for name, has in binding.get_host_cpu_features().items() if has}
    assert set(probe_host().isa) == seen & ISA_FEATURES


def test_this_machine() -> None:
    host = probe_host()
    assert 1 <= host.cores <= host.threads <= (os.cpu_count() or 1)
    assert host.memory_bytes > 2**28
    assert host.devices[0] == "cpu"
    assert probe_host() == host


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def x86(cpus: int, flags: str, model: int = 0x6A) -> dict[str, str]:
    """``cpus`` hyper-threads of half as many cores."""
    entry = "processor\t: {}\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: {}\nflags\t\t: {}\n"
    files = {
        "proc/cpuinfo": "\n".join(entry.format(cpu, model, flags) for cpu in range(cpus)),
        "proc/meminfo": "MemTotal:       1048576 kB\nMemFree: 5 kB\n",
    }
    for cpu in range(cpus):
        folder = f"sys/devices/system/cpu/cpu{cpu}"
        files[f"{folder}/topology/thread_siblings_list"] = f"{cpu - cpu % 2}-{cpu - cpu % 2 + 1}\n"
        for index, (level, kind, size) in enumerate(
            ((1, "Data", "48K"), (1, "Instruction", "32K"), (2, "Unified", "1280K"), (3, "Unified", "48M"))
        ):
            cache = f"{folder}/cache/index{index}"
            files |= {f"{cache}/level": f"{level}\n", f"{cache}/type": f"{kind}\n", f"{cache}/size": f"{size}\n"}
    return files


def test_a_server_with_hyper_threads(tmp_path: Path) -> None:
    flags = "fpu sse sse2 pni ssse3 fma sse4_1 sse4_2 popcnt avx f16c bmi1 avx2 bmi2 avx512f avx512_vnni amx_tile"
    host = probe_linux(tree(tmp_path, x86(8, flags)), tuple(range(8)), "x86_64")
    assert (host.arch, host.cpu, host.cores, host.threads) == ("x86_64", "icelake-server", 4, 8)
    expected = "amx-tile avx avx2 avx512f avx512vnni bmi bmi2 f16c fma popcnt sse2 sse3 sse4.1 sse4.2 ssse3"
    assert list(host.isa) == expected.split()
    assert (host.caches.l1d, host.caches.l2, host.caches.l3) == (48 * 2**10, 1280 * 2**10, 48 * 2**20)
    assert host.memory_bytes == 2**30


def test_affinity_and_groups_limit(tmp_path: Path) -> None:
    root = tree(tmp_path, x86(8, "sse2"))
    assert probe_linux(root, (2, 3), "x86_64").cores == 1
    tree(
        root,
        {
            "proc/self/cgroup": "0::/pod/job\n",
            "sys/fs/cgroup/pod/cpu.max": "250000 100000\n",
            "sys/fs/cgroup/pod/job/cpu.max": "max 100000\n",
            "sys/fs/cgroup/pod/job/memory.max": "536870912\n",
            "sys/fs/cgroup/memory.max": "max\n",
        },
    )
    host = probe_linux(root, tuple(range(8)), "x86_64")
    assert (host.cores, host.threads, host.memory_bytes) == (3, 3, 2**29)


def test_groups_of_version_1(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "5:cpuacct,cpu:/job\n4:memory:/not/visible\n0::/\n",
            "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "150000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "1073741824\n",
        },
    )
    assert cgroup_limits(root) == Limits(1.5, 2**30)


def test_nothing_limits_without_groups(tmp_path: Path) -> None:
    assert cgroup_limits(tmp_path) == Limits()
    unlimited = {
        "proc/self/cgroup": "4:memory:/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    }
    assert cgroup_limits(tree(tmp_path, unlimited)) == Limits()


def test_arm(tmp_path: Path) -> None:
    info = (
        "processor : 0\nFeatures : fp asimd atomics fphp asimdhp asimddp sve asimdfhm i8mm bf16 sve2\n"
        "CPU implementer : 0x41\nCPU part : 0xd4f\n"
    )
    host = probe_linux(tree(tmp_path, {"proc/cpuinfo": info}), (0,), "aarch64")
    assert (host.arch, host.cpu, host.memory_bytes) == ("aarch64", "neoverse-v2", 0)
    assert list(host.isa) == ["bf16", "dotprod", "fp-armv8", "fullfp16", "i8mm", "lse", "neon", "sve", "sve2"]


def test_an_empty_machine_has_the_baseline(tmp_path: Path) -> None:
    host = probe_linux(tmp_path, (0, 1), "x86_64")
    assert (host.isa, host.cpu, host.threads, host.caches.l2) == (("sse2",), "x86-64", 2, 0)
    assert probe_linux(tmp_path, (0,), "riscv64").arch == "other"


def test_other_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    host = probe_host()
    assert (host.arch, host.isa, host.cpu) == ("aarch64", ("fp-armv8", "neon"), "generic")
    assert host.threads == os.cpu_count()


@pytest.mark.parametrize(
    ("vendor", "family", "model", "isa", "name"),
    [
        ("AuthenticAMD", 0x17, 0x01, {"avx2"}, "znver1"),
        ("AuthenticAMD", 0x17, 0x31, {"avx2"}, "znver2"),
        ("AuthenticAMD", 0x19, 0x01, {"avx2"}, "znver3"),
        ("AuthenticAMD", 0x19, 0x11, {"avx2", "avx512f"}, "znver4"),
        ("AuthenticAMD", 0x1A, 0x02, {"avx512f"}, "znver5"),
        ("GenuineIntel", 6, 0x55, {"avx512f"}, "skylake-avx512"),
        ("GenuineIntel", 6, 0x55, {"avx512f", "avx512vnni"}, "cascadelake"),
        ("GenuineIntel", 6, 0x97, {"avxvnni"}, "alderlake"),
        ("GenuineIntel", 6, 0xFE, {"avx2", "bmi", "bmi2", "f16c", "fma"}, "x86-64-v3"),
        ("Unheard", 6, 0x97, {"sse2"}, "x86-64"),
    ],
)
def test_cpu_names(vendor: str, family: int, model: int, isa: set[str], name: str) -> None:
    assert cpu_name("x86_64", {"vendor_id": vendor, "cpu family": str(family), "model": str(model)}, isa) == name


def test_features_of_the_other_architecture_do_not_count() -> None:
    assert isa_features("x86_64", ["avx2", "asimd", "neon", "sme", "sev"]) == ("avx2", "sse2")  # AMD's sme
    assert isa_features("aarch64", ["asimd", "avx2", "sse2"]) == ("fp-armv8", "neon")
