"""The machine that a plan is for: probed, or read from a profile."""

from kernelmap.host.loading import load_host, profile_names
from kernelmap.host.probe import probe_host

__all__ = ["load_host", "probe_host", "profile_names"]
