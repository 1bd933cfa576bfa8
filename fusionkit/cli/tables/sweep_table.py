"""The progress of a sweep: a table on a terminal, otherwise a plain line every few seconds.

The table is redrawn in place a few times per second, and is never taller than the terminal: nothing scrolls.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fusionkit.cli.console import PLAIN_SECONDS, clock, log, table
from fusionkit.cli.tables.sweep_tally import Tally, TallyRow
from fusionkit.fit.progress import FitProgress
from fusionkit.metrics import times_of
from fusionkit.plural import counted
from fusionkit.printable import one_line
from fusionkit.runs.tables.format_cells import score_text
from fusionkit.specs import RunSpec

FRAMES = 4  # per second
LEFT_OVER = 6  # lines of a terminal that the table's rows do not use
BAR = 40  # characters


class SweepTable(FitProgress):
    """Shows the progress of a sweep of ``specs``; ``ended`` are the records of runs that ended before.

    ``on_end`` is called with each new record.
    """

    def __init__(
        self,
        specs: Sequence[RunSpec],
        ended: Iterable[dict[str, Any]] = (),
        console: Console | None = None,
        on_end: Callable[[dict[str, Any]], None] = lambda _: None,
    ) -> None:
        self._console, self._on_end = console or log(), on_end
        self._tally = Tally(specs, ended, time.monotonic)
        self._live: Live | None = None
        self._last = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()

    def begin(self, runs: int, epochs: int, work: Mapping[str, float]) -> None:
        self._tally.begin(work)
        if not runs:
            return
        if not self._console.is_interactive:
            self._console.print(f"fitting {counted(runs, 'run')}: {counted(epochs, 'epoch')}")
            return
        # Removed at the end, when the results are printed.
        self._live = Live(
            get_renderable=lambda: frame(self._tally, self._console.height, self._console.width),
            console=self._console,
            refresh_per_second=FRAMES,
            transient=True,
            redirect_stdout=False,
        )
        self._live.start()

    def epoch(self, work: float) -> None:
        self._tally.epoch(work)
        self._line()

    def step(self, work: float, text: str) -> None:
        self._tally.step(work, text)
        self._line()

    def resumed(self, work: float) -> None:
        self._tally.resumed(work)

    def run(self, record: dict[str, Any]) -> None:
        self._tally.run(record)
        spec = record["spec"]
        if record["status"] == "failed":
            reason = record["error"].splitlines()[0]  # the record has the whole error, which may have many lines
            self.say(f"failed: {spec['fusion']} lr {spec['lr']} seed {spec['data_seed']}: {reason}")
        self._line()
        self._on_end(record)

    def elsewhere(self, record: dict[str, Any]) -> None:
        self._tally.elsewhere(record)
        self._line()
        self._on_end(record)

    def say(self, line: str) -> None:
        """Print a line that stays above the table."""
        self._console.print(line)

    def note(self, text: str) -> None:
        self._tally.note = one_line(text)

    def _line(self) -> None:
        if self._live is None and not self._console.is_interactive and time.monotonic() - self._last > PLAIN_SECONDS:
            self._last = time.monotonic()
            found = self._tally.best().items()
            best = [f"best for {task}: {record['spec']['fusion']} {_score(record)}" for task, record in found]
            self._console.print(", ".join([headline(self._tally), *best]))


def frame(tally: Tally, height: int, width: int) -> Group:
    """Headline, bar and one line per task and fusion, in at most ``height`` lines of ``width``."""
    lines = tally.lines()
    room = max(height - LEFT_OVER, 1)
    parts: list[Any] = [Text(headline(tally), no_wrap=True, overflow="ellipsis")]
    if height >= LEFT_OVER:
        bar = Table.grid()  # a bar alone would not end its line
        bar.add_row(ProgressBar(total=1.0, completed=tally.share, width=min(BAR, width)))
        parts += [bar, _rows(tally, lines[:room])]
    if len(lines) > room and height > LEFT_OVER:
        parts.append(Text(f"and {len(lines) - room} more", style="dim"))
    return Group(*parts)


def _rows(tally: Tally, lines: Sequence[TallyRow]) -> Table:
    columns = [("task", "left"), ("fusion", "left"), *((name, "right") for name in ("done", "failed", "best"))]
    rows = []
    for line in lines:
        best = ["", ""] if line.best is None else [_score(line.best), tally.told(line.best)]
        rows.append([line.label, line.fusion, f"{line.done}/{line.runs}", str(line.failed or ""), *best])
    made = table(None, [*columns, ("of", "left")], rows)
    for column in made.columns:  # a wrapped line would push other lines off the screen
        column.no_wrap, column.overflow = True, "ellipsis"
    return made


def headline(tally: Tally) -> str:
    """``12 of 48 runs done, 36 left, 1 failed, 14.2 heads a minute, about 2:23 to go``."""
    pace, left = tally.per_minute, tally.seconds_left
    parts = [
        f"{tally.done:,} of {counted(tally.runs, 'run')} done",
        f"{tally.runs - tally.done:,} left",
        f"{tally.failed:,} failed" if tally.failed else "",
        f"{tally.others:,} by others" if tally.others else "",
        "" if pace is None else f"{pace:.3g} heads a minute",
        "" if left is None else f"about {clock(left)} to go",
        tally.stepped,
        tally.note,
    ]
    return ", ".join(part for part in parts if part)


def _score(record: dict[str, Any]) -> str:
    return score_text(record["validation_score"], times=times_of(record["metric"]))
