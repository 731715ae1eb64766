"""The ``kernelmap`` command."""

from __future__ import annotations

import errno
import io
import os
import sys
from pathlib import Path
from typing import Annotated, TextIO

import typer

from kernelmap import __version__
from kernelmap.cli import (
    auditing,
    authoring,
    benching,
    catalogue,
    foreign,
    machine,
    promoting,
    proving,
    reporting,
    running,
    selecting,
    tracing,
)
from kernelmap.cli.output import CLEAN, MISUSE, PROBLEM, Format, choose, report
from kernelmap.errors import Diagnostic, KernelmapError, Place

# typer vendors click from some release on; its own exceptions' bases are the same classes either way.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
_ClickException: type[Exception] = typer.BadParameter.__mro__[2]

app = typer.Typer(
    name="kernelmap",
    help="Decide, provably, which kernel runs each operation of a quantized language model on a CPU.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
)
app.command("check")(authoring.check)
app.command("list")(catalogue.list_maps)
app.command("show")(catalogue.show)
app.command("schema")(catalogue.schema)
app.command("rule")(catalogue.rule)
app.command("inventory")(machine.inventory)
app.command("host")(machine.host)
app.command("resolve")(selecting.resolve)
app.command("explain")(selecting.explain)
app.command("lock")(auditing.lock)
app.command("diff")(auditing.diff)
app.command("audit")(auditing.audit)
app.command("report")(reporting.report)
app.command("import-cke")(foreign.import_cke)
app.command("foreign")(foreign.foreign)
app.command("run")(running.run)
app.command("warm")(running.warm)
app.command("replay")(tracing.replay)
app.command("bisect")(tracing.bisect)
app.command("certify")(proving.certify)
app.command("bench")(benching.bench)
app.command("promote")(promoting.promote)
app.command("demote")(promoting.demote)
new = typer.Typer(help="Scaffold files that pass check.", no_args_is_help=True, rich_markup_mode=None)
new.command("provider")(authoring.new_provider)
new.command("contract")(authoring.new_contract)
new.command("circuit")(authoring.new_circuit)
app.add_typer(new, name="new")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kernelmap {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Nothing to do before a command."""


def main() -> None:
    """Runs the command line. Exit codes: 0 clean, 1 an error, 2 wrong use, 130 interrupted."""
    _open_streams()
    sys.exit(run(sys.argv[1:]))


def _open_streams() -> None:
    """Streams that were closed before the start lead nowhere, and what a stream cannot encode is escaped."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115  # for good
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def run(arguments: list[str]) -> int:
    """Runs one command and returns its exit code; no traceback reaches the user."""
    choose(Format.TEXT)
    try:
        code = _told(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader went away (as with `| head`): not an error, and Python must not complain again at exit.
        _give_up(sys.stdout)
        return CLEAN
    except OSError as error:  # a full disk behind a stream, and so nowhere to say it but the other one
        if not _of_printing(error):
            raise
        _give_up(sys.stdout)
        choose(Format.TEXT)
        try:
            return report([Diagnostic("KM832", f"cannot write to standard output: {error.strerror}")])
        except OSError:
            _give_up(sys.stderr)
            return PROBLEM


def _told(arguments: list[str]) -> int:
    """Runs one command; all that goes wrong is reported, but for what goes wrong in printing."""
    try:
        code = app(arguments, standalone_mode=False)
        return code if isinstance(code, int) else CLEAN
    except _ClickException as error:
        error.show()  # type: ignore[attr-defined]
        return MISUSE if isinstance(error, _UsageError) else PROBLEM
    except (typer.Abort, KeyboardInterrupt):
        sys.stderr.write("interrupted\n")
        return 130
    except KernelmapError as error:
        return report(error.diagnostics)
    except Exception as error:  # the last line of defence
        if os.environ.get("KERNELMAP_TRACEBACK") or _of_printing(error):
            raise
        if known := _of_system(error):
            return report([known])
        message = f"unexpected {type(error).__name__}: {error}".replace("\n", " ")
        return report([Diagnostic("KM901", message, help="set KERNELMAP_TRACEBACK=1 for the traceback, and report it")])


def _give_up(stream: TextIO) -> None:
    """Leads what a stream still holds nowhere: Python flushes it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _of_printing(error: Exception) -> bool:
    """Whether an error comes from standard output: all else is written by name."""
    reasons = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF, errno.EAGAIN)
    return isinstance(error, OSError) and error.filename is None and error.errno in reasons


def _of_system(error: Exception) -> Diagnostic | None:
    """What the system refused, where no command says it better: a path too long or forbidden, or memory."""
    if isinstance(error, MemoryError):
        return Diagnostic("KM527", f"not enough memory: {error}" if str(error) else "not enough memory")
    if isinstance(error, OSError) and isinstance(error.filename, str | bytes):
        name = os.fsdecode(error.filename)
        return Diagnostic("KM002", f"cannot read {name}: {error.strerror}", place=Place(name))
    return None
