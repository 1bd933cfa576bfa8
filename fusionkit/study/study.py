"""The content of a study, as plain values: sources, sweeps, comparisons, figures, a page."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fusionkit.fit.sweep.file import Block
from fusionkit.names import BLOCKS, CHOOSERS, COSTS, OVER, SHOWN_SPLITS
from fusionkit.options.entry import WHOLE, about, option, options_of
from fusionkit.specs import EncodeSpec
from fusionkit.statistics import CORRECTIONS, INTERVALS, TESTS
from fusionkit.tasks.joint import is_multi


@dataclass(frozen=True)
class SourceStep:
    """A source to encode.

    Attributes:
        options: the given options of ``fusionkit encode``, by parameter; ``source`` is one.
        place: its place in the file, for errors.
    """

    name: str
    options: dict[str, Any]
    place: str

    @property
    def spec(self) -> EncodeSpec:
        """The options of its encoding."""
        known = options_of(EncodeSpec).values()
        return EncodeSpec(
            **{entry.name: self.options[entry.parameter] for entry in known if entry.parameter in self.options}
        )

    @property
    def command(self) -> list[str]:
        """The arguments of ``fusionkit encode`` for it."""
        named = [(name, value) for name, value in self.options.items() if name != "source"]
        return [self.options["source"], *(word for n, v in named for word in (f"--{n.replace('_', '-')}", str(v)))]


@dataclass(frozen=True)
class SweepStep:
    """A sweep to train.

    Attributes:
        parts: names of sources with the share to train on, None for all. judges: names of sources to evaluate on.
        tasks: the tasks, if each has its own source, by parameter; ``parts`` are then their sources.
        blocks: as for :func:`fusionkit.fit.sweep.blocks.expand_blocks`, except that ``init_from`` and ``draw_from``
            are names of sweeps. begins: the sweeps that it needs.
        block: the same as text, by option. place: its place in the file, for errors.
    """

    name: str
    parts: tuple[tuple[str, str | None], ...]
    judges: tuple[str, ...]
    blocks: tuple[Block, ...]
    begins: tuple[str, ...]
    block: dict[str, Any]
    place: str
    tasks: tuple[Block, ...] = ()

    @property
    def is_multi(self) -> bool:
        """Whether it has several tasks, each over a source of its own."""
        return bool(self.tasks) or any(is_multi(block.get("task")) for block in self.blocks)

    @property
    def sources(self) -> list[str]:
        """The names of all sources that it reads."""
        return list(dict.fromkeys([*(name for name, _ in self.parts), *self.judges]))


@dataclass(frozen=True)
class Comparison:
    """A table of results."""

    name: str
    sweeps: tuple[str, ...] = field(metadata=about("Sweeps whose runs are compared. [default: all]", lists=WHOLE))
    by: tuple[str, ...] = option((), "Columns to group by. [default: what differs]", lists=WHOLE)
    average: tuple[str, ...] = option((), "Columns to average over, for instance data.", lists=WHOLE)
    across: str | None = option(None, "The grouping column whose values become columns of the Markdown table.")
    baseline: str | None = option(None, "Group to compare with: a value of a `by` column, or COLUMN=VALUE.")
    metric: str | None = option(None, "Score to show. [default: the task's own]")
    split: str = option(
        "test", "The split whose score is shown; validation for runs without a test score.", choices=SHOWN_SPLITS
    )
    over: str | None = option(
        None, "What intervals and p-values generalise to. [default: both, if possible]", choices=OVER
    )
    block: str = option("data_seed", "The unit that differences are resampled by.", choices=BLOCKS)
    interval: str = option("t", "How 95 % intervals are computed.", choices=tuple(INTERVALS))
    simultaneous: bool = option(False, "Make the intervals of differences hold for all of them at once.")
    test: str | None = option(
        None, "Test of paired differences over seeds. [default: permutation]", choices=tuple(TESTS)
    )
    choose_by: str | None = option(
        None, "Show only the rates, epochs and layers that this chose. [default: each is a group]", choices=CHOOSERS
    )
    correction: str = option("holm", "Correction of p-values for many comparisons.", choices=tuple(CORRECTIONS))
    ranks: bool = option(False, "Rank groups; groups that paired tests do not tell apart share ranks.")
    pareto: str | None = option(None, "Mark groups that are better than all cheaper ones, by this cost.", choices=COSTS)


@dataclass(frozen=True)
class Report:
    title: str = field(metadata=about("Title of the page. [default: the study's]"))
    baseline: str | None = option(None, "The fusion to compare with.")


@dataclass(frozen=True)
class Study:
    """A whole study, checked.

    Attributes:
        path: the file. figures: their names; None is every figure that the runs have data for, empty is none.
        value: the file's content as texts, after ``--set``.
    """

    path: Path
    title: str
    sources: dict[str, SourceStep]
    sweeps: dict[str, SweepStep]
    comparisons: dict[str, Comparison]
    figures: tuple[str, ...] | None = ()
    report: Report | None = None
    value: dict[str, Any] = field(default_factory=dict)
