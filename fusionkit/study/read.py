"""Reading a study: every key and value is checked before any work, and an error names its line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fusionkit.bundled import travel_desk
from fusionkit.encoder.reference import BUNDLED
from fusionkit.errors import UsageError, errors_at, unknown_name
from fusionkit.names import FIGURES, METRICS
from fusionkit.options.comparison import OF_BASELINES, Comparison, baseline_parts
from fusionkit.options.entry import YES_NO
from fusionkit.options.yaml_file import YamlNode, read_options
from fusionkit.options.yaml_texts import Keys
from fusionkit.sources.source import HUB_ID, refuse_address
from fusionkit.specs import EncodeSpec
from fusionkit.study.keys import ALL_FIGURES, BLOCKS, COLUMNS, COMPARISON, ENCODING, REPORT, SOURCE, TOP
from fusionkit.study.study import Report, SourceStep, Study
from fusionkit.study.sweeps import read_sweep_step
from fusionkit.study.yaml_tree import all_among, block_at, read_written

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")  # of a source, sweep or comparison: it names a file or folder


def read_study(path: Path, settings: Sequence[str] = (), only: Sequence[str] = ()) -> Study:
    """Read and check a study's file.

    Args:
        settings: ``KEY.KEY=VALUE``, which override the file. only: names of sweeps; other sweeps are left out, with the
            sources that only they need.

    Raises:
        UsageError: the file, a key, a name or a value is wrong; the error says where.
    """
    written = read_written(path, settings, {"bundled": str(travel_desk().parent)})
    top = block_at(written, (), TOP, "key of a study")
    for name in BLOCKS:
        for each in block_at(written, (name,)):
            if not NAME.fullmatch(each):
                raise written.wrong(
                    (name, each), f"{each!r} cannot name a file", expected="letters, digits, _ . -", received=each
                )
    shared = read_options(written, (), top, ENCODING)
    texts = {name: top[name] for name in ("title", "about") if top.get(name) not in (None, "")}
    told = read_options(written, (), texts, {name: TOP[name] for name in texts})
    sources = {name: _source(written, name, shared) for name in block_at(written, ("sources",))}
    if not sources:
        raise UsageError(f"{path} names no source", expected="`sources:` with a name and a place", received="none")
    sweeps: dict[str, Any] = {}
    for name in block_at(written, ("sweeps",)):
        sweeps[name] = read_sweep_step(written, name, sources, sweeps)
    ablate: tuple[str, ...] = ()
    if "ablate" in top:
        ablate = read_options(written, (), top, {"ablate": TOP["ablate"]})["ablate"]
        all_among(written, ("ablate",), "sweep", ablate, sweeps)
    comparisons = {name: _comparison(written, name, list(sweeps)) for name in block_at(written, ("comparisons",))}
    title = told.get("title", path.name.split(".")[0])
    figures, report = _figures(written), _report(written, title, told.get("about"))
    study = Study(title, sources, sweeps, ablate, comparisons, figures, report, written)
    return _only(study, only) if only else study


def read_comparisons(path: Path) -> dict[str, Comparison]:
    """Only the comparisons of a study, whose sources may be elsewhere; errors as in :func:`read_study`."""
    written = read_written(path, ["data=."], {"bundled": "."})
    sweeps = list(block_at(written, ("sweeps",)))
    return {name: _comparison(written, name, sweeps) for name in block_at(written, ("comparisons",))}


def _source(written: YamlNode, name: str, shared: Mapping[str, Any]) -> SourceStep:
    keys: Keys = ("sources", name)
    value = written.value["sources"][name]
    if isinstance(value, dict):
        own = read_options(written, keys, block_at(written, keys, SOURCE, "key of a source"), SOURCE)
        if "source" not in own:
            raise written.wrong(
                keys, f"source {name!r} has no place", expected="a key `source:` in its block", remedy="add `source:`"
            )
        keys = (*keys, "source")
    else:
        own = read_options(written, keys[:-1], {name: value}, {name: SOURCE["source"]})
    source = _place(written, keys, own["source"])
    encoder = own.get("encoder", shared.get("encoder"))
    step = SourceStep(name, {**shared, **own, "source": source}, written.where("sources", name))
    if encoder is not None:
        where: Keys = ("sources", name, "encoder") if "encoder" in own else ("encoder",)
        step.options["encoder"] = encoder if encoder in BUNDLED else _beside(written, where, encoder) or encoder
    with errors_at(step.place):
        EncodeSpec.of(step.options)
    return step


def _place(written: YamlNode, keys: Keys, text: str) -> str:
    """A source's place: a path, relative to the file's folder, or an unchanged hub id.

    Raises:
        UsageError: the path does not exist, and the text is not a hub id.
    """
    if (found := _beside(written, keys, text)) is not None:
        return found
    with errors_at(written.where(*keys)):
        refuse_address(text)
    if text.startswith((".", "/", "~")) or not HUB_ID.fullmatch(text):
        raise written.wrong(
            keys,
            f"no such source: {text[:200]}",
            expected="a file or folder that exists, or a hub id",
            received="a path that does not exist",
            remedy="check the path; ${data} stands for what --set data=FOLDER names",
        )
    return text


def _beside(written: YamlNode, keys: Keys, text: str) -> str | None:
    try:
        path = written.folder_of(*keys) / Path(text).expanduser()
        return str(path) if path.exists() else None
    except (OSError, RuntimeError):  # a name that is too long, or the home of an unknown user
        return None


def _comparison(written: YamlNode, name: str, sweeps: list[str]) -> Comparison:
    keys = ("comparisons", name)
    block = block_at(written, keys, COMPARISON, "key of a comparison")
    found = read_options(written, keys, block, COMPARISON)
    all_among(written, (*keys, "sweeps"), "sweep", found.get("sweeps", ()), sweeps)
    made = Comparison(name=name, **{"sweeps": tuple(sweeps), **found})
    if not made.sweeps:
        raise written.wrong(
            (*keys, "sweeps"), "a comparison of no sweeps", expected="some of the study's sweeps", received="none"
        )
    if made.baseline is None and (idle := [name for name in OF_BASELINES if name in found]):
        raise written.wrong(
            (*keys, idle[0]),
            f"{idle[0]!r} compares nothing without a baseline",
            expected="a key `baseline:` beside it",
            received="none",
            remedy=f"name one, like `baseline: last`, or leave {idle[0]!r} out",
        )
    _check_comparison(written, keys, made)
    return made


def _check_comparison(written: YamlNode, keys: Keys, comparison: Comparison) -> None:
    """Refuse columns and scores that no table of results has, and choices that do not go together."""
    from fusionkit.runs.comparison.compare import check_over  # loads pandas

    with errors_at(written.where(*keys)):
        check_over(comparison.over, comparison.interval, comparison.test, comparison.block, comparison.simultaneous)
    all_among(written, (*keys, "by"), "column of the results", comparison.by, COLUMNS)
    all_among(written, (*keys, "average"), "column of the results", comparison.average, COLUMNS)
    metric, of_tasks = comparison.metric, tuple(f"_{name}" for name in METRICS)  # `TASK_accuracy`, of one of several
    if metric is not None and not metric.endswith(of_tasks):
        written.among((*keys, "metric"), "metric", metric, METRICS)
    if both := [name for name in comparison.average if name in comparison.by]:
        raise written.wrong(
            (*keys, "average"),
            f"{both[0]!r} is both grouped by and averaged over",
            expected="a column that is not in `by:`",
            received=", ".join(comparison.average),
            remedy="take it out of `average:` or `by:`",
        )
    if comparison.across is not None and comparison.across not in comparison.by:
        raise written.wrong(
            (*keys, "across"),
            f"{comparison.across!r} is laid across, but not grouped by",
            expected="one of the columns in `by:`",
            received=", ".join(comparison.by) or "none",
            remedy="add it to `by:`",
        )
    for part in baseline_parts(comparison.baseline or "", COLUMNS):
        # `linear:gamma=no,norm=token` is one value: the commas and equals signs after the colon are a fusion's.
        for piece in [part] if ":" in part else part.split(","):
            name, equals, _ = piece.partition("=")
            if equals and ":" not in name:
                written.among((*keys, "baseline"), "column of the results", name, COLUMNS)


def _figures(written: YamlNode) -> tuple[str, ...] | None:
    if "figures" not in written.value:
        return ()
    names: tuple[str, ...] = read_options(written, (), written.value, {"figures": TOP["figures"]})["figures"]
    if names == (ALL_FIGURES,):
        return None
    all_among(written, ("figures",), "figure", names, FIGURES)
    return names


def _report(written: YamlNode, title: str, about: str | None) -> Report | None:
    value = written.value.get("report", "no")
    if isinstance(value, str):
        written.among(("report",), "choice for the report", value.lower(), YES_NO)
        return Report(title, about) if YES_NO[value.lower()] else None
    block = block_at(written, ("report",), REPORT, "key of the report")
    return Report(**{"title": title, "about": about, **read_options(written, ("report",), block, REPORT)})


def _only(study: Study, only: Sequence[str]) -> Study:
    """The study with only these sweeps, those that they start from, their sources, and the tables of these sweeps."""
    for name in only:
        if name not in study.sweeps:
            raise unknown_name("sweep", name, study.sweeps)
    wanted = set(only)
    for name in reversed(study.sweeps):  # a sweep starts only from earlier ones
        if name in wanted:
            wanted |= set(study.sweeps[name].begins)
    sweeps = {name: sweep for name, sweep in study.sweeps.items() if name in wanted}
    needed = {name for sweep in sweeps.values() for name in sweep.sources}
    comparisons = {
        name: replace(each, sweeps=left)
        for name, each in study.comparisons.items()
        if (left := tuple(sweep for sweep in each.sweeps if sweep in wanted))
    }
    sources = {name: source for name, source in study.sources.items() if name in needed}
    ablate = tuple(name for name in study.ablate if name in wanted)
    return replace(study, sources=sources, sweeps=sweeps, ablate=ablate, comparisons=comparisons)
