"""``fusionkit``: the group of commands, each imported when it is called."""

from __future__ import annotations

import importlib
import io
import os
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import click

from fusionkit.cli.options.usage_errors import as_usage_error
from fusionkit.encoder.tokenizer_threads import keep_tokenizers_serial
from fusionkit.errors import FusionkitError, FusionkitWarning, UsageError, unknown_name
from fusionkit.lazy import uncollected
from fusionkit.machine.system_errors import system_error
from fusionkit.printable import printable

COMMANDS = {
    "estimate": "Say what an encode would cost, before it starts.",
    "encode": "Encode a source once into a store of every layer's states.",
    "plan": "Count the weights of several tasks over one encoder.",
    "fit": "Train late-fusion heads over a store.",
    "run": "Take a study from sources to tables, figures and a page.",
    "results": "Summarise runs: mean, std and interval by any columns.",
    "report": "Write a page of runs: tables, charts, a look inside.",
    "ablate": "Score a run without its adapters in consecutive layers.",
    "predict": "Run trained heads over new texts in one pass.",
    "evaluate": "Score trained heads on labelled data, class by class.",
    "export": "Write a run's head as a folder with a model card.",
    "info": "Show what a store or a folder of runs holds.",
    "status": "Say what of a store or a sweep is done, running, failed.",
    "verify": "Check every byte of a store against its checksums.",
    "doctor": "Print what is found here, for a bug report.",
    "demo": "Encode the bundled corpus and compare four fusions on it.",
}
RESUMED = {"encode", "fit", "run"}  # they go on from what an interrupted call has finished


def refuse_repeated(command: click.Command, ctx: click.Context, args: list[str]) -> None:
    """Raise UsageError where an option that takes one value is given several times: click would keep the last one."""
    try:
        _, _, order = command.make_parser(click.Context(command, parent=ctx)).parse_args([*args])
    except click.UsageError:
        return  # the command itself says what is wrong
    for option, count in Counter(order).items():
        if count > 1 and isinstance(option, click.Option) and not (option.multiple or option.is_flag):
            raise UsageError(
                f"{option.opts[0]} takes one value",
                expected="the option once: its value holds for the whole command",
                received=f"{option.opts[0]} {count} times",
                remedy="keep one of them, or run the command once for each",
            )


class Lazy(click.Group):
    """Commands are imported when they are called: ``--help`` needs no torch."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        with uncollected():
            command = getattr(importlib.import_module(f"fusionkit.cli.{name}"), name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not ctx.resilient_parsing and not args[0].startswith("-"):
            raise unknown_name("command", args[0], COMMANDS)
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None and not ctx.resilient_parsing:
            refuse_repeated(command, ctx, rest)
        return name, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="fusionkit")
def group() -> None:
    """Encode once with a frozen transformer, then train many late-fusion heads over every layer."""


_usual = warnings.showwarning


def _shown(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
    """Print fusionkit's own warnings without the line of code that they come from."""
    if issubclass(category, FusionkitWarning):
        click.echo(printable(f"fusionkit: {message}"), err=True)
    else:
        _usual(message, category, *where, **more)


def main() -> None:
    """Run the command line; a user's mistake is one message, never a traceback."""
    # A closed stream is None.
    sys.stdin = sys.stdin or Path(os.devnull).open(encoding="utf-8")  # noqa: SIM115
    sys.stdout, sys.stderr = (stream or Path(os.devnull).open("w") for stream in (sys.stdout, sys.stderr))  # noqa: SIM115
    keep_tokenizers_serial()
    if isinstance(sys.stdout, io.TextIOWrapper):  # what its encoding lacks must not end a command after its work
        sys.stdout.reconfigure(errors="backslashreplace")
    with warnings.catch_warnings():
        warnings.showwarning = _shown
        warnings.filterwarnings("default", category=FusionkitWarning)
        try:
            sys.exit(group.main(prog_name="fusionkit", standalone_mode=False) or 0)
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            sys.exit(error.exit_code)
        except (FusionkitError, click.UsageError) as error:
            told = error if isinstance(error, FusionkitError) else as_usage_error(error)
            click.echo(printable(f"fusionkit: {told}"), err=True)
            sys.exit(told.exit_code)
        except (click.Abort, KeyboardInterrupt):
            kept = "; finished work is kept, run the same command to go on"
            click.echo(f"fusionkit: interrupted{'' if RESUMED.isdisjoint(sys.argv[1:2]) else kept}", err=True)
            sys.exit(130)
        except (OSError, RuntimeError, MemoryError) as error:
            if (refused := system_error(error)) is None:
                raise
            click.echo(printable(f"fusionkit: {refused}"), err=True)
            sys.exit(refused.exit_code)
