"""How ``fit`` is run: its options on processes, what it would take, and how it is stopped."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fusionkit.cli.console import log, out, print_json, table
from fusionkit.cli.times import clock
from fusionkit.errors import StoppedError
from fusionkit.names import LOGS

if TYPE_CHECKING:
    from fusionkit.fit.executor.estimate import Forecast

Command = TypeVar("Command", bound=Callable[..., Any])


class WorkersType(click.ParamType[int | None]):
    """A number of processes; ``auto`` is None."""

    name = "N|auto"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        if value is None or value == "auto":
            return None
        if isinstance(value, int):
            return value
        if not value.isdecimal() or int(value) < 1:
            self.fail(f"{value!r} is neither 'auto' nor a number of processes from 1 on", param, ctx)
        return int(value)


OPTIONS = (
    click.option(
        "--threads", default=1, show_default=True, type=click.IntRange(min=1), help="CPU threads of a process."
    ),
    click.option(
        "--workers",
        default="auto",
        show_default=True,
        type=WorkersType(),
        help="Processes that share the runs; auto: one a core, where the work is worth their start.",
    ),
    click.option("--retry-failed", is_flag=True, help="Train runs again that are there as failed."),
    click.option(
        "--log-to",
        multiple=True,
        type=click.Choice(LOGS),
        help="Log each run there too, also those of before; give it several times.",
    ),
    click.option("--dry-run", is_flag=True, help="Say what there is to do and what it would take, and end."),
)


def working_options(command: Command) -> Command:
    """Add the options above, in their order."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


@contextmanager
def stopped_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end the work where it stands, as Ctrl-C does: what is finished is on the disk."""

    def stop(*_: object) -> None:
        raise StoppedError("stopped by SIGTERM; finished runs are kept", remedy="run the same command to go on")

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def print_forecast(found: Forecast, notes: list[str], as_json: bool) -> None:
    """The plan of a sweep: as numbers, or for people."""
    from fusionkit.fit.executor.estimate import SHOWN

    if as_json:
        print_json({**asdict(found), "notes": notes})
        return
    for note in notes:
        log().print(note)
    console = out()
    shown = [name for name in SHOWN if len({part[name] for part in found.parts}) > 1 or name in ("label", "fusion")]
    rows = [
        [
            *("–" if part[name] is None else str(part[name]) for name in shown),
            f"{part['runs']:,}",
            clock(part["seconds"]),
        ]
        for part in found.parts
    ]
    if rows:
        columns = [*((name, "left") for name in shown), ("runs", "right"), ("one process", "right")]
        console.print(table(None, columns, rows))
    console.print(summary(found))


def summary(found: Forecast) -> str:
    """A few lines: what is there, what is left, time and memory, and how they were found."""
    left = found.runs - found.there
    told = f"{found.runs:,} runs: {found.there:,} there already, {left:,} to train"
    told += f" ({found.elsewhere:,} of them by another process just now)" if found.elsewhere else ""
    if not left:
        return told
    who = f"{found.workers} processes" if found.workers > 1 else "one process"
    sampled = f"all {found.kinds}" if found.sampled == found.kinds else f"{found.sampled} of {found.kinds}"
    return "\n".join(
        (
            f"{told} in {found.units:,} unit{'' if found.units == 1 else 's'} by {who}",
            f"about {clock(found.seconds)}, as busy as this machine is now; about {found.memory / 1e6:,.0f} MB of "
            "memory a process",
            f"counted, and measured on a few epochs or by finished runs of {sampled} kinds of runs",
        )
    )
