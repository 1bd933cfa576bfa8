"""The notes below a table of compared groups."""

from __future__ import annotations

import numpy as np
import pandas as pd

from fusionkit.plural import counted
from fusionkit.runs.comparison.compare import HOW
from fusionkit.runs.comparison.pairing import DATA
from fusionkit.runs.errors_of_means import BOTH, EXAMPLES, SEEDS
from fusionkit.runs.note_texts import first_names
from fusionkit.runs.shown_split import SCORED_ON
from fusionkit.runs.tables.format_cells import cell, group_keys, rows_of
from fusionkit.statistics import LEVEL, TESTS, corrected

NAMES = {"permutation": "sign-flip permutation test", "bootstrap": "shifted bootstrap", "t": "Student's test"}
OVER_EXAMPLES = {
    BOTH: "two-way test over seeds and test examples",
    EXAMPLES: "approximate randomisation of test examples (McNemar's test for accuracies of one run each)",
}  # fmt: skip
CORRECTED = {"holm": "Holm's correction", "bonferroni": "Bonferroni's correction", "fdr": "Benjamini's and Hochberg's"}
FEW = 20  # blocks; with fewer the bootstrap finds false differences (docs/statistics.md)
MOST_BLOCKS = 64


def comparison_notes(compared: pd.DataFrame) -> list[str]:
    """The lines below a table: its method, its limits, and the runs that it leaves out."""
    how = compared.attrs[HOW]
    interval, correction, over = (how[name] for name in ("interval", "correction", "over"))
    by_data, unit = how["block"] == DATA, _unit(compared)
    tested = compared[compared["p"].notna()]
    several = counted(len(tested), "comparison")
    corrected_by = f"{CORRECTED[correction]} for {several}" if correction != "none" else "not corrected"
    which = f"simultaneous for {several}" if how["simultaneous"] else "each by itself" if len(tested) > 1 else ""
    what = f"{interval} interval{f', {which}' if which else ''}"
    notes = [
        f"paired differences to {compared['baseline'].iloc[0]}: 95 % {what}; p by {test_name(compared)}, "
        f"{corrected_by}; * p ≤ 0.05, ** p ≤ 0.01, *** p ≤ 0.001"
    ]
    if by_data:
        notes.append(
            "each data set is one difference: intervals and p-values generalise to other data sets; SE seeds of a "
            "difference is over data sets"
        )
    notes += powerless(compared)
    if how["test"] == "bootstrap" and (tested["blocks"] < FEW).any():
        fewest = int(tested["blocks"].min())
        notes.append(
            f"with {counted(fewest, unit)} the bootstrap's p-values are too small; trust them from about {FEW}"
        )
    shared = tested[tested["pairs"] > tested["blocks"]]
    if len(shared) and over == SEEDS and not by_data:
        pairs, blocks = int(shared["pairs"].iloc[0]), int(shared["blocks"].iloc[0])
        notes.append(
            f"pairs of one training draw count as one trial: {counted(pairs, 'pair')} of {counted(blocks, 'draw')}"
        )
    names = _names(compared)
    if over != SEEDS and len(lone := names[compared["p"].notna() & compared["smallest_p"].notna()]):
        named = first_names(lone.tolist())
        notes.append(f"tested over seeds alone, because answers on the same test examples are missing: {named}")
    if over != EXAMPLES and len(single := names[compared["blocks"] == 1]):
        notes.append(f"one trial, nothing to test: {first_names(single.tolist())}")
    if alone := [f"{n} ({name})" for n, name in zip(compared["unpaired"], names, strict=True) if n > 0]:
        notes.append(f"runs without a partner, left out of the differences: {first_names(alone)}")
    for axes, rows in names.groupby(compared["also_differs"], sort=False):
        notes.append(f"differ from the baseline also in {axes}: {first_names(rows.tolist())}")
    return notes


def test_name(compared: pd.DataFrame) -> str:
    """The test whose p-values a table has, in words."""
    how = compared.attrs[HOW]
    return OVER_EXAMPLES.get(how["over"], f"{NAMES[how['test']]} over {_unit(compared)}s")


def _unit(compared: pd.DataFrame) -> str:
    """What one block of pairs is."""
    return "data set" if compared.attrs[HOW]["block"] == DATA else "seed"


def powerless(compared: pd.DataFrame) -> list[str]:
    """A note if no comparison of a table can be significant, whatever the scores; else none."""
    test, correction, unit = compared.attrs[HOW]["test"], compared.attrs[HOW]["correction"], _unit(compared)
    tested = compared[compared["p"].notna()]
    smallest = tested["smallest_p"].to_numpy(dtype=np.float64)
    if not smallest.size or np.isnan(smallest).any():
        return []
    best = float(corrected(smallest, correction).min())
    if best <= 1 - LEVEL:
        return []
    blocks = int(tested["blocks"].max())
    after = f", {best:.3g} after correction" if best > smallest.min() else ""
    enough = (
        n for n in range(blocks, MOST_BLOCKS)
        if corrected(np.full(len(smallest), TESTS[test].smallest(n)), correction).min() <= 1 - LEVEL
    )  # fmt: skip
    needed = next(enough, None)
    remedy = f"; {counted(needed, unit)} could" if needed else ""
    least = f"p is {smallest.min():.3g} at the least with {counted(blocks, unit)}{after}"
    return [f"no difference can be significant here: {least}{remedy}"]


def _names(compared: pd.DataFrame) -> pd.Series[str]:
    """The name of each row: its values in the columns that differ."""
    keys = [name for name in group_keys(compared) if len(compared[name].drop_duplicates()) > 1]
    keys += [SCORED_ON] if len(compared[SCORED_ON].dropna().drop_duplicates()) > 1 else []
    names = [" ".join(cell(row[name]) for name in keys) for row in rows_of(compared)]
    return pd.Series(names, index=compared.index, dtype=str)
