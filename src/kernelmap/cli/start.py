"""The entry point: an interruption is quiet also while everything else is still being imported, most of a second."""

from __future__ import annotations

import os
import signal
from types import FrameType


def main() -> None:
    """Imports the command line and runs it. An interruption before that exits with 130, as one after it does."""
    early = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if early:  # else it is ignored, as in a background job, and stays so
        signal.signal(signal.SIGINT, _quit)
    from kernelmap.cli.main import main as command

    if early:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    command()


def _quit(_number: int, _frame: FrameType | None) -> None:
    # No exception: libraries that build classes while they are imported turn it into errors of their own.
    try:
        os.write(2, b"interrupted\n")
    finally:
        os._exit(130)
