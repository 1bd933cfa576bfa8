"""The weight of each layer by task, label, language and seed (figure 2 of Cao et al. 2022)."""

from __future__ import annotations

import re
from itertools import compress
from typing import Any

import numpy as np
import pandas as pd

from fusionkit.report.altair import altair
from fusionkit.report.display_names import of_own_stores
from fusionkit.report.figures.encodings import GAP, WIDTH, colours_of, dashes_of, methods_of, panels, shade, tooltip
from fusionkit.report.predictions import RunPredictions, all_predictions, best_of_each
from fusionkit.report.report_data import ReportData
from fusionkit.runs.record import layer_weights_of

# Languages of the data sets that the papers use, and some more; a data set's language is read from its name.
LANGUAGES = {
    "ar": "Arabic", "bg": "Bulgarian", "cs": "Czech", "da": "Danish", "de": "German", "el": "Greek", "en": "English",
    "es": "Spanish", "fi": "Finnish", "fr": "French", "he": "Hebrew", "hi": "Hindi", "hu": "Hungarian",
    "id": "Indonesian", "it": "Italian", "ja": "Japanese", "ko": "Korean", "nl": "Dutch", "no": "Norwegian",
    "pl": "Polish", "pt": "Portuguese", "ro": "Romanian", "ru": "Russian", "sv": "Swedish", "sw": "Swahili",
    "th": "Thai", "tr": "Turkish", "uk": "Ukrainian", "ur": "Urdu", "vi": "Vietnamese", "zh": "Chinese",
}  # fmt: skip
LINE = 19  # pixels per line of a heat map
MOST_NUMBERS = 14  # layers of a heat map with numbers in its cells: in narrower cells they would overlap
MOST_LABELS = 24  # lines of a heat map, for the most frequent labels: more would be hard to read


def by_run(study: ReportData) -> pd.DataFrame:
    """One row per run, column it predicts, and layer: the mean weight over validation rows, as the record has it."""
    runs = study.whole.drop_duplicates(["digest", "task_name"])
    rows: list[dict[str, Any]] = []
    told = runs["task"].where(of_own_stores(runs), "")
    for digest, task, method, own in zip(runs["digest"], runs["task_name"], runs["method"], told, strict=True):
        record = study.records[digest]
        spec, found = record["spec"], layer_weights_of(record)
        if own:  # a row of one of its tasks, or of their mean
            found = {name: weights for name, weights in found.items() if name == own}
        for column, weights in found.items():
            run = {
                "task": task if len(found) == 1 else f"{task} · {column}", "method": method,
                "language": language_of(record["data"]), "data_seed": spec["data_seed"], "init_seed": spec["init_seed"],
            }  # fmt: skip
            each = zip(record["layers"], weights or (), strict=False)
            rows += [{**run, "layer": layer, "weight": weight} for layer, weight in each]
    columns = ["task", "method", "language", "data_seed", "init_seed", "layer", "weight"]
    return pd.DataFrame(rows, columns=columns)


def language_of(name: str) -> str | None:
    """The language whose code is a part of a data set's name: German for ``mtop-de``; else None."""
    parts = [part for part in re.split(r"[^A-Za-z]+", name) if part]
    return next((LANGUAGES[part.lower()] for part in reversed(parts) if part.lower() in LANGUAGES), None)


def by_task(study: ReportData) -> pd.DataFrame:
    """Mean weights over the seeds: one row per method, task and layer."""
    return _mean(by_run(study), "task")


def by_language(study: ReportData) -> pd.DataFrame | None:
    """Mean weights by language; None unless the names of the data sets give two languages or more."""
    found = by_run(study).dropna(subset="language")
    if found["language"].nunique() < 2:
        return None
    columns = found["task"].str.partition(" · ")[2]
    if len(set(columns)) > 1:
        found["language"] += " · " + columns
    # Two data sets of one language are two settings, and a mean over both would mix them.
    if found["task"].nunique() > found["language"].nunique():
        found["language"] = found["task"]
    return _mean(found, "language")


def by_seed(study: ReportData) -> pd.DataFrame | None:
    """Each run's own weights; None unless some task and method has several runs."""
    found = by_run(study)
    several = found.duplicated(["task", "method", "layer"]).any()
    return found.drop(columns=["language"]) if several else None


def by_label(study: ReportData) -> pd.DataFrame | None:
    """Mean weights over the rows of each gold label, of each task's best run whose fusion weighs rows differently."""
    rows = []
    for run in best_of_each(filter(_labels_differ, all_predictions(study).runs)):
        told = label_weights(run)
        for name in sorted(told, key=lambda name: -told[name][0])[:MOST_LABELS]:
            count, weights = told[name]
            label = {"task": run.task, "method": run.method, "label": name, "rows": count}
            rows += [{**label, "layer": layer, "weight": w} for layer, w in zip(run.layers, weights, strict=True)]
    return pd.DataFrame(rows) if rows else None


def label_weights(run: RunPredictions) -> dict[str, tuple[int, list[float]]]:
    """The number of rows and their mean weights by gold label; by entity type for span tags."""
    if run.weights is None or run.kind == "number":
        return {}
    each: list[str] = []  # a row's label is its word's tag or its example's label
    for gold, has in zip(run.gold, run.has_row, strict=True):
        each += compress(gold if isinstance(gold, list) else [str(gold)] * len(has), has)
    labels = np.array([name[2:] if run.kind == "spans" and name != "O" else name for name in each])
    return {
        str(name): (int((labels == name).sum()), run.weights[labels == name].mean(0).tolist())
        for name in np.unique(labels)
    }


def _labels_differ(run: RunPredictions) -> Any:
    """Whether weights may differ by label: there are two labels or more, and weights differ between rows."""
    return run.weights is not None and len(label_weights(run)) > 1 and np.ptp(run.weights, axis=0).max() >= 1e-6


def heat_by(column: str, study: ReportData, data: pd.DataFrame) -> Any:
    """One panel per method, one line per value of the column, one cell per layer."""
    return _heat(data, column, list(dict.fromkeys(data[column])), "method", methods_of(data))


def chart_by_label(study: ReportData, data: pd.DataFrame) -> Any:
    """One panel per task and method, one line per label."""
    data = data.assign(panel=data["task"] + " · " + data["method"])
    lines = data.groupby("panel", sort=False)["label"].nunique()  # panels of similar height are side by side
    return _heat(data, "label", None, "panel", lines.sort_values(ascending=False, kind="stable").index.tolist())


def chart_by_seed(study: ReportData, data: pd.DataFrame) -> Any:
    """One panel per task: a dot for each run, a line for the mean of each method."""
    alt = altair()
    methods = methods_of(data)
    base = alt.Chart().encode(
        x=alt.X("layer:O", title="layer", axis=alt.Axis(labelAngle=0)), color=colours_of(study, methods)
    )
    told = tooltip(method="method", layer="layer", weight__n="weight", data_seed="data seed", init_seed="init seed")
    y = alt.Y("weight:Q", title=None)
    dots = base.mark_point(filled=True, size=22, opacity=0.75).encode(y=y, tooltip=told)
    line = base.mark_line(strokeWidth=1.6).encode(
        y=alt.Y("mean(weight):Q", title=None), strokeDash=dashes_of(study, methods)
    )
    return panels(alt.layer(line, dots), data, "task")


def _mean(found: pd.DataFrame, by: str) -> pd.DataFrame:
    weights = found.groupby(["method", by, "layer"], sort=False)["weight"]
    return weights.agg(weight="mean", std_over_runs="std", runs="size").reset_index()


def _heat(data: pd.DataFrame, line: str, order: list[str] | None, panel: str, panels_in_order: list[str]) -> Any:
    alt = altair()
    many = data["layer"].nunique() > MOST_NUMBERS
    data = data.assign(told=["" if many else f"{weight:.2f}".removeprefix("0") for weight in data["weight"]])
    base = alt.Chart().encode(
        x=alt.X("layer:O", title="layer (0 is the embedding output)", axis=alt.Axis(labelAngle=0)),
        y=alt.Y(f"{line}:N", title=None, sort=order),
    )
    cells = base.mark_rect(style="heat").encode(
        fillOpacity=shade("weight"),
        tooltip=tooltip(**{panel: panel, line: line, "layer": "layer", "weight__n": "weight"}),
    )
    texts = base.mark_text(style="on-heat", fontSize=9).encode(text=alt.Text("told:N"))
    layers = alt.layer(cells, texts)
    names = min(max(len(str(name)) for name in data[line]) * 6 + 8, 218)
    if order is not None:
        size = (WIDTH, alt.Step(LINE))
        return panels(layers, data, panel, panels_in_order, free=(), size=size, names=names)
    # Panels with different lines need different heights, which a facet cannot have.
    made = [
        layers.transform_filter(alt.datum[panel] == value).properties(title=value, width=WIDTH, height=alt.Step(LINE))
        for value in panels_in_order
    ]
    joined = alt.concat(
        *made, data=data, columns=min(3, len(made)), bounds="flush", spacing={"column": GAP + names, "row": 74}
    )
    joined = joined.resolve_scale(x="independent", y="independent")
    return joined.properties(usermeta={"panels": len(made), "free": True, "names": names, "square": False, "below": 40})
