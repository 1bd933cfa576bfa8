"""Parts of the documents' tables: the records of a sweep, the rows and columns that are shown, the lines below."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from fusionkit.errors import unknown_name
from fusionkit.metrics import LESS_IS_BETTER, times_of
from fusionkit.report.figures.from_text import HEADS, paid_after
from fusionkit.runs.comparison.ties import TIED
from fusionkit.runs.record import answers_in
from fusionkit.runs.shown_split import SCORED_ON, TEST
from fusionkit.runs.tables.format_cells import NOTHING, cell, score_text
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
            own = group[group[across].astype(str) == head].set_index("rate").reindex(rates)
            best = _from_best(own)["mean"].tolist()[:1]
            texts = [f"**{_score(row)}**" if row["mean"] in best else _score(row) for _, row in own.iterrows()]
            told.append(" / ".join(texts) if best else "")
        rows.append([*map(cell, names), *told])
    return _lines(rows)


def _rate(row: pd.Series[Any]) -> float:
    """The rate of the encoder where it is trained, else that of the head."""
    encoder = row.get("encoder_lr")
    return float(row["lr"] if pd.isna(encoder) else encoder)


def costs_table(frame: pd.DataFrame, by: Sequence[str], across: str, records: Mapping[str, dict[str, Any]]) -> str:
    """A Markdown table of what a task costs with each method: the weights that are trained without the head, their
    share of the encoder's, the bytes that a run keeps and the peak memory of a step, the larger of the groups of
    ``across``; and the seconds of one run, with these groups side by side.
    """
    down, columns = [name for name in by if name != across], [str(name) for name in frame[across].unique()]
    heads = ["weights without the head", "% of the encoder", "MB a task", "MB in a step"]
    rows = [[*down, *heads, *(f"{name} s" for name in columns)]]
    rows.append(["---"] * len(rows[0]))
    for names, group in frame.groupby(down, sort=False, dropna=False):
        runs = [records[digest] for digest in group["digest"].unique()]
        weights = max(each["trained_parameters"] - each["head_parameters"] for each in runs)
        seconds = group.groupby(across)["seconds_alone"].mean()
        told = [f"{weights:,}", two_digits(100 * weights / runs[0]["encoder_parameters"])]
        told += [f"{max(each[key] for each in runs) / 1e6:.1f}" for key in ("kept_bytes", "peak_memory_alone")]
        rows.append([*map(cell, names), *told, *(_seconds(seconds.get(name)) for name in columns)])
    return _lines(rows)


def seconds_table(
    frame: pd.DataFrame,
    by: Sequence[str],
    across: str,
    records: Mapping[str, dict[str, Any]],
    encoding: Mapping[str, Mapping[str, Any]],
) -> str:
    """A Markdown table of the seconds from the text to the score, with the groups of ``across`` side by side. A frozen
    head has three: of a single head, of one of 10 and of one of 100 heads over one store. A run that trains the encoder
    has its own, and in brackets from how many heads on one encoding and that many heads take less time than as many of
    these runs, even with the slowest frozen fusion.
    """
    down, columns = [name for name in by if name != across], [str(name) for name in frame[across].unique()]
    rows = [[*down, *(f"{name} s" for name in columns)], ["---"] * (len(down) + len(columns))]
    alone = frame.groupby([across, *down], sort=False, dropna=False)["seconds_alone"].mean()
    stores = {str(name): records[group["digest"].iloc[0]]["spec"]["store"] for name, group in frame.groupby(across)}
    once = {name: sum(encoding[store]["seconds"].values()) for name, store in stores.items()}
    frozen = frame[frame["method"] == FROZEN].groupby([across, *down], sort=False)["seconds_alone"].mean()
    for names, group in frame.groupby(down, sort=False, dropna=False):
        told = []
        for name in columns:
            seconds = alone.get((name, *names))
            if pd.isna(seconds):
                told.append(NOTHING)
            elif group["method"].iloc[0] == FROZEN:
                told.append(" / ".join(_seconds(once[name] / heads + seconds) for heads in HEADS))
            else:
                paid = paid_after(once[name], frozen[name].max(), seconds)
                told.append(f"{_seconds(seconds)} ({NOTHING if paid is None else f'{paid:g}'})")
        rows.append([*map(cell, names), *told])
    return _lines(rows)


def two_digits(number: float) -> str:
    """At least two digits, without an exponent: ``0.000035``, ``1.0``, ``199``."""
    if round(number, 1) >= 10 or not number:
        return f"{number:.0f}"
    return np.format_float_positional(number, 2, fractional=False, min_digits=2)


def _seconds(seconds: Any, unit: str = "") -> str:
    return NOTHING if pd.isna(seconds) else f"{seconds:.{0 if seconds >= 10 else 1}f}{unit}"


def from_text(summary: pd.DataFrame, encoding: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """The summary with the seconds of encoding the whole store in those of a frozen fusion, as if it were the only one
    over the store.
    """
    once = {each["data"]: sum(each["seconds"].values()) for each in encoding.values()}
    share = summary["data"].map(once).where(summary["method"] == FROZEN, 0.0)
    return summary.assign(seconds_alone=summary["seconds_alone"] + share)


BUDGETS = (30.0, 120.0, 300.0, float("inf"))  # seconds of one run


def budgets_table(summary: pd.DataFrame) -> str:
    """A Markdown table with a line for each data set and number of examples: the best method among those whose run
    takes at most so many seconds, and its seconds.
    """
    heads = ["any" if limit == float("inf") else f"at most {limit:g} s" for limit in BUDGETS]
    rows = [["data", "shots", *heads], ["---"] * (2 + len(heads))]
    for (data, shots), group in summary.dropna(subset="mean").groupby(["data", "shots"], sort=False, dropna=False):
        ranked = _from_best(group)
        within = [ranked if limit == float("inf") else ranked[ranked["seconds_alone"] <= limit] for limit in BUDGETS]
        told = [
            NOTHING if found.empty else f"{_scored(found.iloc[0])}, {_seconds(found.iloc[0]['seconds_alone'], ' s')}"
            for found in within
        ]
        rows.append([str(data), _shots(shots), *told])
    return _lines(rows)


def guideline_table(summary: pd.DataFrame) -> str:
    """A Markdown table with a line for each data set and number of examples: the best method, those that do not differ
    significantly from it, the quickest of all these, and the best frozen fusion. Where nothing was tested the best
    stands alone.
    """
    rows = [["data", "shots", "best", "no significant difference to it", "quickest of these", "best frozen fusion"]]
    rows.append(["---"] * len(rows[0]))
    for (data, shots), group in summary.dropna(subset="mean").groupby(["data", "shots"], sort=False, dropna=False):
        ranked = _from_best(group)
        tied = ranked[ranked[TIED].fillna(False).astype(bool)]
        tied = ranked[:1] if tied.empty else tied
        frozen = ranked[ranked["method"] == FROZEN]
        quickest = tied.sort_values("seconds_alone", kind="stable").iloc[0]
        others = ", ".join(_scored(row) for _, row in tied.iloc[1:].iterrows())
        timed = f"{_name(quickest)}, {_seconds(quickest['seconds_alone'], ' s')}"
        rows.append(
            [
                str(data),
                _shots(shots),
                _scored(tied.iloc[0]),
                others or NOTHING,
                timed,
                NOTHING if frozen.empty else _scored(frozen.iloc[0]),
            ]
        )
    return _lines(rows)


def _shots(shots: Any) -> str:
    return "all" if pd.isna(shots) else cell(shots)


def _from_best(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows that have a score, the best mean first."""
    least_first = bool(rows["metric"].isin(LESS_IS_BETTER).any())
    return rows.dropna(subset="mean").sort_values("mean", ascending=least_first, kind="stable")


def _scored(row: pd.Series[Any]) -> str:
    return f"{_name(row)} {_score(row)}"


def _score(row: pd.Series[Any]) -> str:
    return score_text(row["mean"], times=times_of(row["metric"]))


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


def studies_table(studies: Sequence[tuple[str, str, Sequence[Mapping[str, Any]]]]) -> str:
    """A Markdown table with a line for each study: name, title, the number of its runs, and the hours that they take
    one after another and alone.
    """
    rows = [["study", "title", "runs", "hours of training"], ["---"] * 4]
    for name, title, records in studies:
        hours = sum(record.get("seconds_alone") or 0.0 for record in records) / 3600
        rows.append([f"`{name}`", title, f"{len(records):,}", f"{hours:.1f}"])
    return _lines(rows)


def _lines(rows: Sequence[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
