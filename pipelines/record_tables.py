"""Parts of the documents' tables: the records of a sweep, the rows and columns that are shown, the lines below."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from fusionkit.errors import unknown_name
from fusionkit.runs.comparison.ties import TIED
from fusionkit.runs.record import answers_in
from fusionkit.runs.shown_split import SCORED_ON, TEST
from fusionkit.runs.tables.format_cells import cell
from fusionkit.specs import FROZEN
from fusionkit.statistics.kept_answers import RunAnswers

WIDTH = 138  # characters in a line of text


@dataclass(frozen=True)
class SweepRecords:
    """The records of one sweep (:class:`fusionkit.study.report_steps.Recorded`)."""

    found: Sequence[dict[str, Any]]

    def records(self) -> list[dict[str, Any]]:
        return list(self.found)

    def answers(self, digest: str) -> dict[str, RunAnswers]:
        return answers_in(self._by_digest.get(digest, {}))

    @cached_property
    def _by_digest(self) -> dict[str, dict[str, Any]]:
        return {each["digest"]: each for each in self.found}


def wrapped(lines: str) -> str:
    """The lines with all but those of tables wrapped."""
    return "".join(
        line if line.startswith("|") or not line.strip() else textwrap.fill(line.rstrip(), WIDTH) + "\n"
        for line in lines.splitlines(keepends=True)
    )


def on_test(summary: pd.DataFrame) -> pd.DataFrame:
    """The summary; if all scores are of test, without the column that says so, as the documents say it already."""
    return summary.drop(columns=SCORED_ON) if (summary[SCORED_ON].dropna() == TEST).all() else summary


def only(frame: pd.DataFrame, choice: Mapping[str, str]) -> pd.DataFrame:
    """The rows with these values, without the columns of the values."""
    for column, value in choice.items():
        if column not in frame:
            raise unknown_name("column of the table", column, frame.columns)
        frame = frame[frame[column].map(cell) == value].drop(columns=column)
    return frame


def rates_table(frame: pd.DataFrame, by: Sequence[str], across: str) -> str:
    """A Markdown table of each group's rate, with the groups of ``across`` side by side. A method that trains through
    the encoder has that of the encoder.
    """
    down, columns = [name for name in by if name != across], frame[across].unique()
    lines: dict[tuple[str, ...], dict[Any, str]] = {}
    for _, row in frame.iterrows():
        lines.setdefault(tuple(cell(row[name]) for name in down), {})[row[across]] = f"{_rate(row):g}"
    rows = [[*down, *map(str, columns)], ["---"] * (len(down) + len(columns))]
    rows += [[*names, *(rates.get(column, "") for column in columns)] for names, rates in lines.items()]
    return _lines(rows)


def grid_table(summary: pd.DataFrame, by: Sequence[str], across: str) -> str:
    """A Markdown table of each group's score at each of its rates, the best in bold, with the groups of ``across`` side
    by side. A group is what ``by`` names without its rates.
    """
    down = [name for name in by if name not in (across, "lr", "encoder_lr")]
    heads = [str(name) for name in summary[across].unique()]
    rows = [[*down, "rates", *heads], ["---"] * (len(down) + 1 + len(heads))]
    for names, group in summary.assign(rate=summary.apply(_rate, axis=1)).groupby(down, sort=False, dropna=False):
        rates = sorted(group["rate"].unique())
        told = [" / ".join(f"{rate:g}" for rate in rates)]
        for head in heads:
            scores = group[group[across].astype(str) == head].set_index("rate")["mean"].reindex(rates)
            texts = ["–" if pd.isna(mean) else f"{100 * mean:.1f}" for mean in scores]
            best = [mean == scores.max() for mean in scores]
            marked = [f"**{text}**" if first else text for text, first in zip(texts, best, strict=True)]
            told.append("" if scores.isna().all() else " / ".join(marked))
        rows.append([*map(cell, names), *told])
    return _lines(rows)


def _rate(row: pd.Series[Any]) -> float:
    """The rate of the encoder where it is trained, else that of the head."""
    encoder = row.get("encoder_lr")
    return float(row["lr"] if pd.isna(encoder) else encoder)


def guideline_table(summary: pd.DataFrame) -> str:
    """A Markdown table with a line for each data set and number of examples: the best method, those that do not differ
    significantly from it, the quickest of all these, and the best frozen fusion.
    """
    rows = [["data", "shots", "best", "no significant difference to it", "quickest of these", "best frozen fusion"]]
    rows.append(["---"] * len(rows[0]))
    for (data, shots), group in summary.groupby(["data", "shots"], sort=False, dropna=False):
        tied = group[group[TIED].astype(bool)].sort_values("mean", ascending=False)
        frozen = group[group["method"] == FROZEN]
        quickest, last = tied.loc[tied["seconds_alone"].idxmin()], frozen.loc[frozen["mean"].idxmax()]
        others = ", ".join(_scored(row) for _, row in tied.iloc[1:].iterrows())
        seconds = quickest["seconds_alone"]
        timed = f"{_name(quickest)}, {seconds:.{0 if seconds >= 10 else 1}f} s"
        rows.append(
            [
                str(data),
                "all" if pd.isna(shots) else cell(shots),
                _scored(tied.iloc[0]),
                others or "–",
                timed,
                _scored(last),
            ]
        )
    return _lines(rows)


def _scored(row: pd.Series[Any]) -> str:
    return f"{_name(row)} {100 * row['mean']:.1f}"


def _name(row: pd.Series[Any]) -> str:
    """``attention`` for a frozen fusion, ``full`` for a method under the fusion ``last``, else both."""
    if row["method"] == FROZEN:
        return f"`{row['fusion']}`"
    return f"`{row['method']}`" if row["fusion"] == "last" else f"`{row['method']}` with `{row['fusion']}`"


def weights_table(frame: pd.DataFrame, by: Sequence[str], records: Mapping[str, dict[str, Any]]) -> str:
    """A Markdown table of the mean weight of each layer, over those runs of each group that have layer weights."""
    keys, lines, layers = [name for name in by if name in frame], {}, set[int]()
    for names, group in frame.groupby(keys, sort=False, dropna=False):
        found = [records[digest] for digest in group["digest"].unique() if records[digest].get("layer_weights")]
        if found:
            each = pd.DataFrame([dict(zip(r["layers"], r["layer_weights"], strict=True)) for r in found]).mean()
            lines[tuple(map(cell, names))] = each
            layers |= set(each.index)
    rows = [[*keys, *map(str, sorted(layers))], ["---"] * (len(keys) + len(layers))]
    for names, each in lines.items():
        rows.append([*names, *(f"{each[layer]:.2f}" if layer in each else "" for layer in sorted(layers))])
    return _lines(rows)


def _lines(rows: Sequence[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
