"""The ``kernelmap`` command."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from kernelmap import __version__
from kernelmap.cli import auditing, authoring, catalogue, machine, proving, running, selecting
from kernelmap.cli.output import CLEAN, MISUSE, PROBLEM, Format, choose, report
from kernelmap.errors import Diagnostic, KernelmapError

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
app.command("run")(running.run)
app.command("warm")(running.warm)
app.command("certify")(proving.certify)
new = typer.Typer(help="Scaffold files that pass check.", no_args_is_help=True, rich_markup_mode=None)
new.command("provider")(authoring.new_provider)
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
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Runs one command and returns its exit code; no traceback reaches the user."""
    choose(Format.TEXT)
    try:
        code = app(arguments, standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else CLEAN
    except _ClickException as error:
        error.show()  # type: ignore[attr-defined]
        return MISUSE if isinstance(error, _UsageError) else PROBLEM
    except (typer.Abort, KeyboardInterrupt):
        sys.stderr.write("interrupted\n")
        return 130
    except KernelmapError as error:
        return report(error.diagnostics)
    except BrokenPipeError:
        # The reader went away (as with `| head`): not an error, and Python must not complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLEAN
    except Exception as error:  # the last line of defence
        if os.environ.get("KERNELMAP_TRACEBACK"):
            raise
        message = f"unexpected {type(error).__name__}: {error}".replace("\n", " ")
        return report([Diagnostic("KM901", message, help="set KERNELMAP_TRACEBACK=1 for the traceback, and report it")])
