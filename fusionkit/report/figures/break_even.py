"""The cost of many heads: encoding once compared with encoding in every epoch.

    once(n)   =  Σ_splits s  +  Σ_{i ≤ n} t_i
    again(n)  =  Σ_{i ≤ n} (E_i · s_train · x_i / X + (F_i · w_i + 1) · s_validation + s_test + a_i)

Symbols: ``s`` the seconds that a split's encoding took; ``t_i`` the seconds that head i took over the store as its
share of heads trained together, ``a_i`` those it takes alone; ``E_i`` its epochs, ``x_i`` the examples it learned from
of ``X`` in train; ``F_i`` the epochs after which it was scored, ``w_i`` the share of validation that was then read. The
1 is the best epoch's score on all of validation, which is left out if w_i is 1. ``once`` is measured; ``again`` is
counted from the same measurements: it is what the frozen encoder would cost if its states were not kept.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from fusionkit.report.altair import altair
from fusionkit.report.figures.encodings import panels, tooltip, whole_numbers
from fusionkit.report.report_data import ReportData
from fusionkit.specs import FROZEN

ONCE, AGAIN = "encoded once", "encoded in every epoch"


def data(study: ReportData) -> pd.DataFrame | None:
    """One row per store, way and number of heads. Heads are in the order that the runs ended; stores need two runs or
    more and known seconds.
    """
    rows: list[dict[str, Any]] = []
    runs = study.frame[study.frame["status"] == "finished"].drop_duplicates("digest")
    # Methods that train through the encoder run it in every epoch, with or without a store.
    frozen = [digest for digest, record in study.records.items() if record["spec"]["method"] == FROZEN]
    runs = runs[runs["digest"].isin(frozen)]
    runs = runs[runs[["mix", "task_stores", "evaluate_on"]].isna().all(axis=1)]
    for digest, group in runs.groupby("store", sort=False):
        name = str(group["data"].iloc[0])
        store = study.stores.get(str(digest))
        seconds = study.encode_seconds.get(str(digest))
        if store is None or seconds is None or len(group) < 2:
            continue
        splits = store.manifest["splits"]
        examples, whole = (int(splits.get(name, {}).get("examples", 0)) for name in ("train", "validation"))
        alone = len(set(runs.loc[runs["data"] == name, "store"])) == 1
        two = " (two)" if group["sides"].iloc[0] == 2 else ""
        task = name if alone else f"{name} · rows of {group['rows'].iloc[0]}{two} · {group['encoder'].iloc[0]}"
        if any(row["store"] == task for row in rows):  # a store of the same name, which has another dtype, say
            task = f"{task} · {str(digest)[:4]}"
        once, again = sum(seconds.values()), 0.0
        rows += [_row(task, ONCE, 0, once), _row(task, AGAIN, 0, 0.0)]
        for number, run in enumerate(group["digest"], start=1):
            record = study.records[run]
            learned = study.examples_learned(record)
            share = 1.0 if learned is None else min(learned / examples, 1.0)
            curve = record.get("curve") or []
            watched = min(record.get("watched", whole) / whole, 1.0) if whole else 0.0
            scored = sum(epoch["validation_score"] is not None for epoch in curve) * watched + (watched < 1)
            passes = len(curve) * seconds.get("train", 0.0) * share + scored * seconds.get("validation", 0.0)
            once += record["seconds"]
            again += passes + seconds.get("test", 0.0) + (record.get("seconds_alone") or record["seconds"])
            rows += [_row(task, ONCE, number, once), _row(task, AGAIN, number, again)]
    return pd.DataFrame(rows) if rows else None


def about(data: pd.DataFrame) -> str:
    """From which number of heads on encoding once is cheaper for each store, in words."""
    wide = data.pivot_table(index=["store", "heads"], columns="way", values="minutes")
    crossings = {}
    for store, each in wide.groupby(level="store", sort=False):
        cheaper = each[each[ONCE] < each[AGAIN]].index.get_level_values("heads")
        crossings[store] = f"from head {cheaper[0]} on" if len(cheaper) else "never for these heads"
    if set(crossings.values()) == {"from head 1 on"}:
        return "The store has paid for itself with the first head of every data set here."
    return f"Encoding once is cheaper for {'; '.join(f'{store}: {told}' for store, told in crossings.items())}."


def chart(study: ReportData, data: pd.DataFrame) -> Any:
    """Two lines per store: minutes by number of heads."""
    alt = altair()
    colours, dashes = (
        alt.Scale(domain=[ONCE, AGAIN], range=each) for each in (["#3f7de0", "#d8591a"], [[1, 0], [5, 3]])
    )
    base = alt.Chart().encode(
        x=alt.X("heads:Q", title="heads trained", axis=whole_numbers(data["heads"])),
        y=alt.Y("minutes:Q", title="minutes, one worker"),
        color=alt.Color("way:N", title=None, scale=colours, legend=alt.Legend()),
        strokeDash=alt.StrokeDash("way:N", title=None, scale=dashes),
    )
    line = base.mark_line(strokeWidth=2)
    points = base.mark_point(filled=True, size=14, opacity=1).encode(
        tooltip=tooltip(way="way", heads="heads", minutes__n="minutes")
    )
    return panels(alt.layer(line, points), data, "store", names=54)


def _row(store: str, way: str, heads: int, seconds: float) -> dict[str, Any]:
    return {"store": store, "way": way, "heads": heads, "minutes": seconds / 60}
