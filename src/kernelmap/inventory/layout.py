"""Where tensors lie in their file: inside it, and on no byte of another."""

from __future__ import annotations

from collections.abc import Iterable

from kernelmap.inventory.problems import Problems, shown
from kernelmap.models.inventory import TensorInfo


def check_layout(tensors: Iterable[TensorInfo], file: str, size: int, problems: Problems) -> None:
    """Reports each tensor of one file that ends past the file's ``size`` bytes (KM615) or overlaps another (KM616)."""
    end, owner = 0, ""
    for item in sorted(tensors, key=lambda tensor: (tensor.offset or 0, tensor.nbytes)):
        start = item.offset or 0
        stop = start + item.nbytes
        if stop > size:
            problems.add(
                "KM615", file, f"tensor {shown(item.name)} lies outside the file",
                expected=f"bytes {start} to {stop}", found=f"{size} bytes in the file",
                help="the file is truncated or damaged: compare its size with the publisher's",
            )  # fmt: skip
        if start < end and item.nbytes:
            problems.add(
                "KM616", file, f"tensors {shown(owner)} and {shown(item.name)} overlap at byte {start}",
                expected=f"an offset from byte {end} on",
            )  # fmt: skip
        if stop > end:
            end, owner = stop, item.name
