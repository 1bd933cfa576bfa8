"""The content of a page as plain values. The scripts of the page lay it out, and the page gets nothing else."""

from __future__ import annotations

import importlib.metadata
import platform
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fusionkit.names import MEAN, ROLES
from fusionkit.plural import counted
from fusionkit.report.display_names import of_own_stores
from fusionkit.report.predictions import all_predictions
from fusionkit.report.predictions_panel import inside_of
from fusionkit.report.render import RenderedFigure
from fusionkit.report.report_data import ReportData
from fusionkit.report.tables import compared, groups_table, matrix_tables, runs_table
from fusionkit.report.theme import config
from fusionkit.specs import FROZEN

MOST_NAMES = 6  # names that a sentence lists
IDENTITY = {
    "compute_dtype": "float32",
    "limit": None,
    "mask_seed": 0,
    "mask_share": 0.15,
}  # options: defaults
PACKAGES = ("fusionkit", "torch", "numpy", "scipy", "zarr", "altair", "vl-convert-python")
BY_COST = ("seconds-from-text", "seconds", "parameters", "bytes", "memory")
# Charts stand in these sections of the page, in this order.
SECTIONS = (
    ("scores", "Scores and what they cost", ("shots", "epochs", *BY_COST, "single-layers", "layers-needed")),
    (
        "training",
        "Training",
        ("score-by-epoch", "score-by-seconds", "loss-by-step", "loss-by-seconds", "loss-by-seconds-from-text"),
    ),
    (
        "weights",
        "Where the fusions look",
        ("layer-weights", "layer-weights-by-language", "layer-weights-by-label", "layer-weights-by-seed", "ablation"),
    ),
    ("encoding", "Encoding once", ("break-even",)),
)


def content_of(
    study: ReportData,
    figures: Sequence[RenderedFigure],
    baseline: str | None,
    title: str | None,
    about: str | None,
    out: Path,
) -> dict[str, Any]:
    """Everything that the page holds; errors as for :func:`fusionkit.report.tables.compared`."""
    table, notes = compared(study, baseline)
    predictions = all_predictions(study)
    drawn = {one.name: one for one in figures}
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
        "title": title
        or f"Layer fusion over {_listed(study.frame['encoder'].unique())}: {_listed(study.frame['data'].unique())}",
        "about": about or "",
        "lead": lead_of(study),
        "matrices": matrix_tables(study, table),
        "groups": groups_table(study, table),
        "runs": runs_table(study),
        "colours": {method: style.colour for method, style in study.styles(()).items()},
        "notes": notes,
        "sections": [section for section in charts if section["charts"]],
        "config": config("page"),
        "inside": inside_of(predictions.runs),
        "left_out": predictions.left_out,
        "provenance": provenance_of(study, baseline, title, about, out),
    }


def lead_of(study: ReportData) -> str:
    """The paragraph at the top: the subject of the report, from its runs."""
    encoders = study.frame["encoder"].unique()
    seeds = study.frame.groupby(["task_name", "shots_name", "method"])["digest"].nunique()
    least, most = int(seeds.min()), int(seeds.max())
    parameters = study.frame["encoder_parameters"].dropna().unique()
    size = f" ({parameters[0] / 1e6:.1f} M parameters)" if len(encoders) == 1 and len(parameters) == 1 else ""
    means = of_own_stores(study.frame) & (study.frame["task"] == MEAN)
    tasks = study.frame["task_name"][~means].nunique() or len(study.tasks)
    # A run that is scored on several stores has a row for each.
    failed = int(study.frame.loc[study.frame["status"] == "failed", "digest"].nunique())
    told = (
        f"{_listed(encoders)}{size}: {_kinds(study)}; "
        f"{counted(len(study.methods), 'method')} on {counted(tasks, 'task')}, "
        f"{'' if least == most else f'{least} to '}{counted(most, 'run')} each. "
        "Scores are of the test split, or of validation where there is no test; ± is the standard deviation over "
        "the runs. Where several rates or other options were tried, those with the best validation score count."
    )
    return told + (f" {counted(failed, 'run')} failed." if failed else "")


def _kinds(study: ReportData) -> str:
    """``8 heads over frozen states``, ``4 runs that trained through the encoder``, or both."""
    methods = [record["spec"]["method"] for record in study.records.values()]
    frozen = methods.count(FROZEN)
    heads = f"{counted(frozen, 'head')} over frozen states"
    runs = f"{counted(len(methods) - frozen, 'run')} that trained through the encoder"
    return " and ".join([*([heads] if frozen else []), *([runs] if frozen < len(methods) else [])])


def _listed(names: Iterable[object]) -> str:
    """``a``, ``a, b and c``, or the first six and how many more."""
    listed = list(map(str, names))
    if len(listed) > MOST_NAMES:
        listed[MOST_NAMES:] = [f"{len(listed) - MOST_NAMES} more"]
    return " and ".join(filter(None, [", ".join(listed[:-1]), listed[-1]]))


def provenance_of(
    study: ReportData, baseline: str | None, title: str | None, about: str | None, out: Path
) -> dict[str, Any]:
    """Encoders, stores, versions and the commands that make the report again; the only paths are those that the user
    gave.
    """
    seen: dict[str, dict[str, Any]] = {}
    for record in study.records.values():
        for digest, told in _stores_of(record).items():
            seen.setdefault(digest, {**record, **told})
    stores, encoders = [], {}
    for digest, record in seen.items():
        encoding, store = record.get("encoding") or {}, study.stores.get(digest)
        identity = encoding.get("encoder") or {}
        encoders[record["encoder"], identity.get("weights")] = {
            "name": record["encoder"],
            "parameters": record.get("encoder_parameters"),
            **{name: identity.get(name) for name in ("weights", "tokenizer", "revision")},
        }
        manifest = {} if store is None else store.manifest
        stores.append({
            "digest": digest,
            "data": record["data"],
            "rows": record["rows"],
            "layers": record["layers"] if store is None else list(store.layers),
            "dtype": manifest.get("dtype"),
            "there": store is not None,
            "examples": {name: split["examples"] for name, split in manifest.get("splits", {}).items()},
            "versions": (manifest.get("identity") or {}).get("versions"),
            "encode": _encode(record, store),
        })  # fmt: skip
    words = ["fusionkit", "report", *map(str, study.folders), "--out", str(out)]
    words += [word for place in study.given_stores for word in ("--store", str(place))]
    words += [] if title is None else ["--title", title]
    words += ["--about", about] if about else []
    words += [] if baseline is None else ["--baseline", baseline]
    return {
        "encoders": list(encoders.values()),
        "stores": stores,
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "command": shlex.join(words),
        "runs": [{"folder": str(folder),
                  "runs": int(study.frame.loc[study.frame["folder"] == str(folder), "digest"].nunique())}
                 for folder in study.folders],
    }  # fmt: skip


def _stores_of(record: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """All stores that a run read, by digest, with what its record has of each: the data's name, how it was encoded."""
    spec, own = record["spec"], {"data": str(record["data"]).split(" + ")[0]}
    if spec.get("task_stores"):
        tasks = [own, *({k: each[k] for k in ("data", "encoding", "sides")} for each in record["others"].values())]
        return dict(reversed(list(zip(spec["task_stores"].split(","), tasks, strict=True))))  # a store's first task
    parts = {part["store"]: {"data": part["data"]} for part in record.get("parts") or ()}
    scored = zip((spec.get("evaluate_on") or "").split(","), str(record.get("evaluated")).split(", "), strict=False)
    return (parts or {spec["store"]: own}) | {
        digest: {"data": name} for digest, name in scored if digest not in ("", *parts)
    }


def _encode(record: dict[str, Any], store: Any) -> str:
    """The command that encodes a store of this identity from the source of this name."""
    encoding = record.get("encoding") or {}
    columns = encoding.get("columns") or {}
    source, _, limit = str(record["data"]).partition(" (first ")  # the name of limited data says so
    words = ["fusionkit", "encode", source, "--encoder", str(record["encoder"])]
    revision = (encoding.get("encoder") or {}).get("revision")
    words += ["--encoder-revision", revision] if revision else []
    words += ["--rows", str(record["rows"])] if record["rows"] != "masked-tokens" else ["--task", "mlm"]
    for role in ROLES:
        words += [f"--{role}", columns[role]] if columns.get(role) else []
    words += ["--pair-as", "two" if record.get("sides") == 2 else "one"] if columns.get("pair") else []
    if store is not None:
        count, identity = store.manifest["encoder"]["layers"], store.manifest["identity"]
        asked = {**identity, **identity.get("mlm", {})}
        words += ["--layers", ",".join(map(str, store.layers))] if len(store.layers) < count else []
        words += ["--dtype", store.manifest["dtype"]]
        words += ["--lm-head", made] if (made := asked.get("lm_head", {}).get("made_of")) else []
        for option, usual in IDENTITY.items():
            given = asked.get(option, usual)
            words += [f"--{option.replace('_', '-')}", str(given)] if given != usual else []
    elif limit:
        words += ["--limit", limit.rstrip(")").replace(",", "")]
    words += ["--max-length", str(encoding["max_length"])] if encoding.get("max_length") else []
    name = Path(store.path.name) if store is not None else f"{source}.store"
    return shlex.join([*words, "--out", str(name)])
