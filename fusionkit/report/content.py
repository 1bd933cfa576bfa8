"""The content of a page as plain values. The scripts of the page lay it out, and the page gets nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fusionkit.plural import counted
from fusionkit.report.predictions import AllPredictions
from fusionkit.report.predictions_panel import inside_of
from fusionkit.report.provenance import provenance_of
from fusionkit.report.render import RenderedFigure
from fusionkit.report.report_data import ReportData
from fusionkit.report.tables import compared, groups_table, matrix_table, runs_table
from fusionkit.report.theme import colour, config

# Charts stand in these sections of the page, in this order.
SECTIONS = (
    ("scores", "Scores and what they cost", ("shots", "epochs", "parameters", "seconds", "single-layers")),
    ("training", "Training", ("score-by-epoch", "score-by-seconds", "loss-by-step", "loss-by-seconds")),
    (
        "weights",
        "Where the fusions look",
        ("layer-weights", "layer-weights-by-language", "layer-weights-by-label", "layer-weights-by-seed"),
    ),
    ("encoding", "Encoding once", ("break-even",)),
)


def content_of(
    study: ReportData,
    looks: AllPredictions,
    figures: Sequence[RenderedFigure],
    baseline: str | None,
    title: str | None,
    out: Path,
) -> dict[str, Any]:
    """Everything that the page holds.

    Raises:
        UsageError: no run has finished, or the baseline is unknown or without a partner.
    """
    table, notes = compared(study, baseline)
    drawn = {one.name: one for one in figures}
    failed = int((study.frame["status"] != "finished").sum())
    charts = [
        {
            "id": section,
            "title": heading,
            "charts": [
                {"name": name, "title": one.title, "caption": one.caption, "spec": one.spec}
                for name in names
                if (one := drawn.get(name)) is not None
            ],
        }
        for section, heading, names in SECTIONS
    ]
    return {
        "title": title or _title(study),
        "lead": lead_of(study, failed),
        "matrix": matrix_table(study, table),
        "groups": groups_table(study, table),
        "runs": runs_table(study),
        "colours": {method: colour(method) for method in study.methods},
        "notes": notes,
        "sections": [section for section in charts if section["charts"]],
        "config": config("page"),
        "inside": inside_of(looks),
        "left_out": looks.left_out,
        "provenance": provenance_of(study, baseline, out),
    }


def lead_of(study: ReportData, failed: int) -> str:
    """The paragraph at the top: what the report is about."""
    encoders = list(dict.fromkeys(study.frame["encoder"]))
    seeds = study.frame.groupby(["task_name", "shots_name", "method"])["digest"].nunique()
    least, most = int(seeds.min()), int(seeds.max())
    parameters = study.frame["encoder_parameters"].dropna().unique()
    size = f" ({parameters[0] / 1e6:.1f} M parameters)" if len(encoders) == 1 and len(parameters) == 1 else ""
    told = (
        f"{counted(len(study.records), 'head')} over the frozen states of {_listed(encoders)}{size}: "
        f"{counted(len(study.methods), 'fusion method')} on {counted(len(study.tasks), 'task')}, "
        f"{least if least == most else f'{least} to {most}'} {'run' if most == 1 else 'runs'} each. "
        "Scores are of the test split, or of validation where there is no test; ± is the standard deviation over "
        "the runs. Where several rates or other options were tried, those with the best validation score count."
    )
    return told + (f" {counted(failed, 'run')} failed." if failed else "")


def _title(study: ReportData) -> str:
    data = list(dict.fromkeys(study.frame["data"].astype(str)))
    return f"Layer fusion over {_listed(list(dict.fromkeys(study.frame['encoder'])))}: {_listed(data)}"


def _listed(names: list[str], most: int = 6) -> str:
    shown = [str(name) for name in names[:most]]
    if len(names) > most:
        return ", ".join(shown) + f" and {len(names) - most} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else shown[0]
