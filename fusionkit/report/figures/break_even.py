"""The cost of many heads: encoding once compared with encoding in every epoch.

    once(n)   =  Σ_splits s  +  Σ_{i ≤ n} t_i
    again(n)  =  Σ_{i ≤ n} (E_i · (s_train · x_i / X + s_validation) + s_test + t_i)

Symbols: ``s`` the seconds that a split's encoding took, ``t_i`` the seconds that head i took over the store, ``E_i``
its epochs, ``x_i`` the examples it learned from of ``X`` in train. ``once`` is measured; ``again`` is counted from the
same measurements: it is what the frozen encoder would cost if its states were not kept.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from fusionkit.report.altair import altair
from fusionkit.report.figures.encodings import panels, tooltip
from fusionkit.report.predictions import AllPredictions
from fusionkit.report.report_data import ReportData
from fusionkit.report.stores import encode_seconds
from fusionkit.report.train_size import examples_learned

ONCE, AGAIN = "encoded once", "encoded in every epoch"
SPLITS = ("train", "validation", "test")


def data(study: ReportData, looks: AllPredictions) -> pd.DataFrame | None:
    """A row a store, way and number of heads, in the order that the runs ended; stores whose seconds are known."""
    rows: list[dict[str, Any]] = []
    runs = study.frame[study.frame["status"] == "finished"].drop_duplicates("digest")
    for digest, group in runs[runs["mix"].isna()].groupby("store", sort=False):
        name = str(group["data"].iloc[0])
        seconds = _seconds(study, str(digest), name)
        if seconds is None or len(group) < 2:
            continue
        alone = len(set(runs.loc[runs["data"] == name, "store"])) == 1
        task = name if alone else f"{name} · rows of {_rows(group)}"
        once, again, number = sum(seconds.values()), 0.0, 0
        rows += [_row(task, ONCE, 0, once), _row(task, AGAIN, 0, 0.0)]
        for run in group["digest"]:
            record = study.records[run]
            learned, number = examples_learned(study, record), number + 1
            share = 1.0 if learned is None else min(learned / _train_size(study, str(digest), learned), 1.0)
            epochs = len(record.get("curve") or [])
            passes = epochs * (seconds.get("train", 0.0) * share + seconds.get("validation", 0.0))
            once += record["seconds"]
            again += passes + seconds.get("test", 0.0) + record["seconds"]
            rows += [_row(task, ONCE, number, once), _row(task, AGAIN, number, again)]
    return pd.DataFrame(rows) if rows else None


def pays_from(data: pd.DataFrame) -> dict[str, int | None]:
    """By store the first number of heads from which encoding once is cheaper, or None where it never is here."""
    wide = data.pivot_table(index=["store", "heads"], columns="way", values="minutes")
    found: dict[str, int | None] = {}
    for store, each in wide.groupby(level="store", sort=False):
        cheaper = each[each[ONCE] < each[AGAIN]]
        found[str(store)] = int(cheaper.index.get_level_values("heads")[0]) if len(cheaper) else None
    return found


def about(data: pd.DataFrame) -> str:
    """Where the lines cross, in words."""
    crossings = pays_from(data)
    told = [
        f"{store}: never for these heads" if heads is None else f"{store}: from head {heads} on"
        for store, heads in crossings.items()
    ]
    if set(crossings.values()) == {1}:
        return "The store has paid for itself with the first head of every data set here."
    return f"Encoding once is cheaper for {'; '.join(told)}."


def chart(study: ReportData, data: pd.DataFrame) -> Any:
    """Two lines a store: minutes by number of heads."""
    alt = altair()
    colours = alt.Color(
        "way:N", title=None, scale=alt.Scale(domain=[ONCE, AGAIN], range=["#3f7de0", "#d8591a"]), legend=alt.Legend()
    )
    base = alt.Chart().encode(
        x=alt.X("heads:Q", title="heads trained", axis=alt.Axis(tickMinStep=1, format="d")),
        y=alt.Y("minutes:Q", title="minutes, one worker"),
        color=colours,
        strokeDash=alt.StrokeDash("way:N", title=None, scale=alt.Scale(domain=[ONCE, AGAIN], range=[[1, 0], [5, 3]])),
    )
    line = base.mark_line(strokeWidth=2)
    points = base.mark_point(filled=True, size=14, opacity=1).encode(
        tooltip=tooltip(way="way", heads="heads", minutes__n="minutes")
    )
    return panels(alt.layer(line, points), data, "store", list(dict.fromkeys(data["store"])), names=54)


def _row(store: str, way: str, heads: int, seconds: float) -> dict[str, Any]:
    return {"store": store, "way": way, "heads": heads, "minutes": seconds / 60}


def _seconds(study: ReportData, digest: str, name: str) -> dict[str, float] | None:
    store = study.stores.get(digest)
    found = None if store is None else encode_seconds(store)
    if found is not None:
        return found
    told = study.encoding.get(name)
    return None if told is None else {"train": told}


def _rows(group: pd.DataFrame) -> str:
    return f"{group['rows'].iloc[0]}{' (two)' if group['sides'].iloc[0] == 2 else ''}"


def _train_size(study: ReportData, digest: str, learned: int) -> int:
    store = study.stores.get(digest)
    return learned if store is None else int(store.manifest["splits"]["train"]["examples"])
