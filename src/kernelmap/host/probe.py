"""Probes the machine that this process runs on, as far as the process may use it."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from kernelmap.host.cgroups import Limits, cgroup_limits
from kernelmap.host.cpu import BASELINE, cpu_name, isa_features
from kernelmap.models.host import Caches, Host

_ARCHITECTURES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


def probe_host() -> Host:
    """The facts of this machine. What cannot be found out is 0 or the architecture's baseline, never a guess."""
    if platform.system() == "Linux":
        return probe_linux(Path("/"), _affinity(), platform.machine())
    return _portable(platform.machine())


def probe_linux(root: Path, cpus: tuple[int, ...], machine: str) -> Host:
    """The facts that a Linux file tree under ``root`` (its proc and sys) tells of a process that may use ``cpus``."""
    arch = _ARCHITECTURES.get(machine.lower(), "other")
    entry = _cpuinfo(root, cpus[0])
    flags = (entry.get("flags") or entry.get("Features") or "").split()
    isa = isa_features(arch, flags)
    limits = cgroup_limits(root)
    threads = _limited(len(cpus), limits)
    memory = _memory(root)
    return _host(
        arch=arch,
        cpu=cpu_name(arch, entry, isa),
        isa=isa,
        cores=min(_cores(root, cpus), threads),
        threads=threads,
        caches=_caches(root, cpus[0]),
        memory=min(memory, limits.memory_bytes) if limits.memory_bytes and memory else memory or limits.memory_bytes,
        cuda=(root / "proc/driver/nvidia/version").exists(),
    )


def _portable(machine: str) -> Host:
    """What Python itself knows, for systems without Linux's proc and sys."""
    arch = _ARCHITECTURES.get(machine.lower(), "other")
    threads = os.cpu_count() or 1
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        memory = 0
    isa = tuple(sorted(BASELINE[arch]))
    return _host(arch, "generic", isa, threads, threads, Caches(), max(0, memory), cuda=False)


def _host(
    arch: str, cpu: str, isa: tuple[str, ...], cores: int, threads: int, caches: Caches, memory: int, *, cuda: bool
) -> Host:
    return Host.model_validate(
        {
            "schema_version": 1,
            "name": f"{cpu}-{threads}t",
            "arch": arch,
            "cpu": cpu,
            "isa": isa,
            "cores": cores,
            "threads": threads,
            "caches": caches,
            "memory_bytes": memory,
            "devices": ("cpu", "cuda") if cuda else ("cpu",),
        }
    )


def _affinity() -> tuple[int, ...]:
    try:
        return tuple(sorted(os.sched_getaffinity(0))) or (0,)
    except (AttributeError, OSError):
        return tuple(range(os.cpu_count() or 1))


def _limited(count: int, limits: Limits) -> int:
    """CPUs under a quota: 1.5 CPUs run two threads, the second at half speed."""
    return max(1, min(count, -int(-limits.cpus // 1))) if limits.cpus else count


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def _cpuinfo(root: Path, cpu: int) -> dict[str, str]:
    """One processor's entry of /proc/cpuinfo; the first entry if that processor has none."""
    entries = [
        {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in block.splitlines())}
        for block in _text(root / "proc/cpuinfo").split("\n\n")
    ]
    return next((entry for entry in entries if entry.get("processor") == str(cpu)), entries[0])


def _cores(root: Path, cpus: tuple[int, ...]) -> int:
    """Physical cores behind ``cpus``: hyper-threads list the same siblings."""
    folder = root / "sys/devices/system/cpu"
    siblings = {_text(folder / f"cpu{cpu}/topology/thread_siblings_list") or f"{cpu}" for cpu in cpus}
    return len(siblings)


def _caches(root: Path, cpu: int) -> Caches:
    sizes: dict[str, int] = {}
    for index in sorted((root / f"sys/devices/system/cpu/cpu{cpu}/cache").glob("index*")):
        level, kind = _text(index / "level"), _text(index / "type")
        if kind in {"Data", "Unified"}:
            sizes[level] = _size(_text(index / "size"))
    return Caches(l1d=sizes.get("1", 0), l2=sizes.get("2", 0), l3=sizes.get("3", 0))


def _size(text: str) -> int:
    """``48K`` in bytes; 0 if it is no size."""
    number, unit = (text[:-1], text[-1:]) if text[-1:] in _UNITS else (text, "")
    return int(number) * _UNITS.get(unit, 1) if number.isdecimal() else 0


def _memory(root: Path) -> int:
    for line in _text(root / "proc/meminfo").splitlines():
        if line.startswith("MemTotal:"):
            number = line.split()[1]
            return int(number) * 1024 if number.isdecimal() else 0
    return 0
