"""What a study asks for, as plain values: sources, sweeps, comparisons, figures, a page."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fusionkit.fit.sweep.file import Block
from fusionkit.specs import EncodeSpec

# What `fusionkit encode` takes where nothing is said.
UNSAID: dict[str, Any] = {
    "encoder": "minilm", "encoder_revision": None, "config": None, "revision": None,
    "text": None, "pair": None, "tokens": None,
}  # fmt: skip
PLACES = {"revision": "encoder_revision"}  # of an EncodeSpec


@dataclass(frozen=True)
class SourceStep:
    """A source to encode.

    Attributes:
        options: those of ``fusionkit encode`` that are said, by parameter; ``source`` among them.
        place: where it stands.
    """

    name: str
    options: dict[str, Any]
    place: str

    @property
    def spec(self) -> EncodeSpec:
        """How it is encoded."""
        known = EncodeSpec.__dataclass_fields__
        taken = {name: self.options.get(PLACES.get(name, name)) for name in known}
        return EncodeSpec(**{name: value for name, value in taken.items() if value is not None})

    @property
    def command(self) -> list[str]:
        """Its options as the command line writes them."""
        named = [(name, value) for name, value in self.options.items() if name != "source"]
        return [self.options["source"], *(word for n, v in named for word in (f"--{n.replace('_', '-')}", str(v)))]


@dataclass(frozen=True)
class SweepStep:
    """A sweep to train.

    Attributes:
        parts: names of sources with the share to train on, None for all. judges: names of sources to judge by.
        blocks: as :func:`fusionkit.fit.sweep.blocks.expand_blocks` takes them, but that ``init_from`` and
            ``draw_from`` are names of sweeps. begins: the sweeps that it needs.
        block: the same as text, by option. place: where it stands.
    """

    name: str
    parts: tuple[tuple[str, str | None], ...]
    judges: tuple[str, ...]
    blocks: tuple[Block, ...]
    begins: tuple[str, ...]
    block: dict[str, Any]
    place: str

    @property
    def sources(self) -> list[str]:
        """The names of all sources that it reads."""
        return list(dict.fromkeys([*(name for name, _ in self.parts), *self.judges]))


@dataclass(frozen=True)
class Comparison:
    """A table of results; see :data:`fusionkit.study.keys.COMPARISON`."""

    name: str
    sweeps: tuple[str, ...]
    by: tuple[str, ...] = ()
    across: str | None = None
    baseline: str | None = None
    metric: str | None = None
    interval: str = "t"
    test: str = "permutation"
    correction: str = "holm"


@dataclass(frozen=True)
class Report:
    """The page."""

    title: str
    baseline: str | None = None


@dataclass(frozen=True)
class Study:
    """All of it, checked.

    Attributes:
        path: the file. figures: their names; None is every one that the runs have data for, empty is none.
        value: the file as text, ``--set`` laid over it.
    """

    path: Path
    title: str
    sources: dict[str, SourceStep]
    sweeps: dict[str, SweepStep]
    comparisons: dict[str, Comparison]
    figures: tuple[str, ...] | None = ()
    report: Report | None = None
    value: dict[str, Any] = field(default_factory=dict)
