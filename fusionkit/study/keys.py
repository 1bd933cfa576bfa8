"""The keys of a study's file, by block: one table for reading, for checking and for the schema."""

from __future__ import annotations

from dataclasses import fields, replace

from fusionkit.options.comparison import Comparison
from fusionkit.options.entry import NONE, WHOLE, OptionInfo, options_of
from fusionkit.options.tables import ENCODE, FIT, STORES, by_flag
from fusionkit.runs.record import FLAT
from fusionkit.specs import RunSpec
from fusionkit.study.study import Report

ALL_FIGURES = "all"


def _blocks(**helps: str) -> dict[str, OptionInfo]:
    return by_flag(*(OptionInfo(name=name, help=told, lists=NONE) for name, told in helps.items()))


def _keys_of(spec: type[object]) -> dict[str, OptionInfo]:
    entries = options_of(spec).values()
    return by_flag(*(entry if entry.lists == WHOLE else replace(entry, lists=NONE) for entry in entries))


# How a source is encoded. `device` depends on the machine, and whether to trust remote code is decided by the user who
# runs a study, not by its author: both are options of the command line only.
ENCODING = {flag: entry for flag, entry in ENCODE.items() if flag not in ("device", "trust-remote-code")}
SOURCE = {**_blocks(source="A file, a folder, a hub id; ${data}/NAME."), **ENCODING}
COMPARISON = _keys_of(Comparison)
REPORT = _keys_of(Report)
BLOCKS = ("sources", "sweeps", "comparisons")
TOP = {
    **_blocks(
        title="Title of the study, for tables and the page.",
        about="What the study compares and what it leaves out; a paragraph of the page.",
        data="The folder that ${data} stands for, relative to this file; --set data=FOLDER overrides it.",
    ),
    **{flag: replace(entry, help=f"{entry.help} For all sources.") for flag, entry in ENCODING.items()},
    **_blocks(
        sources="Data to encode, by names that you choose: a place, or a block with its options.",
        fit="Options of fit for all sweeps; a sweep's own options override them.",
        sweeps="Runs to train, by names that you choose: a block as in files of `fusionkit fit --sweep`.",
    ),
    "ablate": OptionInfo(
        name="ablate", help="Sweeps whose runs are also scored without the parts of each span of layers.", lists=WHOLE
    ),
    **_blocks(comparisons="Tables of results, by names that you choose."),
    "figures": OptionInfo(name="figures", help="Names of figures, or all.", lists=WHOLE),
    **_blocks(
        report="A page of all runs: yes, or a block with title, about and baseline.",
        cluster="Settings of the cluster that runs the study; --cluster and --cluster-config override them.",
    ),
}
FROM = ("init-from", "draw-from")  # names of earlier sweeps
SWEEP = (*STORES, *FIT, "runs", "tasks")
COLUMNS = ("sweep", *(field.name for field in fields(RunSpec)), *FLAT)  # columns that a comparison may group by
