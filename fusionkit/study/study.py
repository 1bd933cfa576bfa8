"""The content of a study, as plain values: sources, sweeps, comparisons, figures, a page."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fusionkit.fit.sweep.file import Block
from fusionkit.options.comparison import Comparison
from fusionkit.options.entry import about, option
from fusionkit.options.yaml_file import YamlNode
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
class Report:
    title: str = field(metadata=about("Title of the page. [default: the study's]"))
    about: str | None = option(None, "A paragraph below the title. [default: the study's]")
    baseline: str | None = option(None, "The fusion to compare with.")


@dataclass(frozen=True)
class Study:
    """A whole study, checked.

    Attributes:
        ablate: names of sweeps whose runs are also scored without the parts of each span of layers.
        figures: their names; None is every figure that the runs have data for, empty is none.
        written: the file's content, after ``--set``.
    """

    title: str
    sources: dict[str, SourceStep]
    sweeps: dict[str, SweepStep]
    ablate: tuple[str, ...]
    comparisons: dict[str, Comparison]
    figures: tuple[str, ...] | None
    report: Report | None
    written: YamlNode
