"""The keys of a study's file, by block: one table for reading, for checking and for the schema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fusionkit.fit.sweep.file import KEYS, SHARED
from fusionkit.specs import COMPRESSIONS, COMPUTE_DTYPES, PAIR_FORMS, ROWS, STATE_DTYPES
from fusionkit.statistics import CORRECTIONS, INTERVALS, TESTS

ALL_FIGURES = "all"


@dataclass(frozen=True)
class Field:
    """One key.

    Attributes:
        help: what it is. kind: of its text, ``str``, ``int`` or ``float``. choices: where only these may stand.
        several: a list of them may stand.
    """

    help: str
    kind: type = str
    choices: tuple[str, ...] | None = None
    several: bool = False


# How a source is encoded: the options of `fusionkit encode`. `device` is the machine's, and code of others' must be
# trusted by who runs a study, not by who wrote it: both stay on the command line.
ENCODING: dict[str, Field] = {
    "encoder": Field("minilm, a folder or a hub id."),
    "encoder-revision": Field("Revision of a hub encoder."),
    "config": Field("Configuration of a hub data set."),
    "revision": Field("Revision of a hub data set."),
    "rows": Field("What a stored row is.", choices=ROWS),
    "layers": Field("all, 0,6,12 or -4: (0 is the embeddings)."),
    "dtype": Field("Precision of the stored states.", choices=STATE_DTYPES),
    "compress": Field("Compression of the stored states.", choices=COMPRESSIONS),
    "compute-dtype": Field("Precision of the forward pass.", choices=COMPUTE_DTYPES),
    "max-length": Field("Sub-tokens an example may have.", int),
    "text": Field("Column with the text."),
    "pair": Field("Column with the second text of a pair."),
    "pair-as": Field("A pair as so many sequences.", choices=PAIR_FORMS),
    "tokens": Field("Column with lists of words."),
    "task": Field("mlm masks sub-tokens and keeps their rows alone.", choices=("mlm",)),
    "mask-seed": Field("With task mlm: which sub-tokens are masked.", int),
    "mask-share": Field("With task mlm: how many of them.", float),
}
SOURCE: dict[str, Field] = {"source": Field("A file, a folder, a hub id; ${data}/NAME."), **ENCODING}
COMPARISON: dict[str, Field] = {
    "sweeps": Field("Whose runs it compares. [default: all]", several=True),
    "by": Field("Columns to group by. [default: what differs]", several=True),
    "across": Field("The column of them that the Markdown table lays across."),
    "baseline": Field("What to compare with: a value of a `by` column, or COLUMN=VALUE."),
    "metric": Field("Score to show. [default: the task's own]"),
    "interval": Field("95 % intervals.", choices=tuple(INTERVALS)),
    "test": Field("Of paired differences.", choices=tuple(TESTS)),
    "correction": Field("Of all p-values together.", choices=tuple(CORRECTIONS)),
}
REPORT: dict[str, Field] = {
    "title": Field("Of the page. [default: the study's]"),
    "baseline": Field("The fusion to compare with."),
}
BLOCKS = ("sources", "sweeps", "comparisons")
TOP: dict[str, Field] = {
    "title": Field("What tables and the page are called by."),
    "about": Field("A sentence or two."),
    "data": Field("The folder that ${data} stands for; relative to this file. --set data=FOLDER wins over it."),
    **{name: Field(f"{field.help} Of all sources.", field.kind, field.choices) for name, field in ENCODING.items()},
    "sources": Field("What is encoded, by a name of one's own: a place, or a block with its options."),
    "fit": Field("Options of fit that all sweeps share; a sweep's own win."),
    "sweeps": Field("What is trained, by a name of one's own: a block as `fusionkit fit --sweep` files have it."),
    "comparisons": Field("Tables of results, by a name of one's own."),
    "figures": Field("Names of figures, or all.", several=True),
    "report": Field("yes, or a block with title and baseline: a page of all runs."),
    "cluster": Field("Settings of the cluster that does the work. --cluster and --cluster-config win over it."),
}
FROM = ("init-from", "draw-from")  # names of earlier sweeps
SWEEP = (*SHARED, *KEYS, "runs")


def options_of(block: Mapping[str, Field]) -> list[str]:
    """The names of a block's keys as the functions behind them call them."""
    return [name.replace("-", "_") for name in block]
