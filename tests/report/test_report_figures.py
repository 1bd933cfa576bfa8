"""The figures' data, against the records counted another way; and the files they are written to."""

from __future__ import annotations

import importlib
import json
import math
import re
from dataclasses import replace
from importlib import resources
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import seqeval.metrics
from scipy import stats

from fusionkit.errors import UsageError
from fusionkit.report import FIGURES, draw_figures, write_report
from fusionkit.report.content import SECTIONS, provenance_of
from fusionkit.report.display_names import bounds_of
from fusionkit.report.figures import from_text
from fusionkit.report.figures.break_even import AGAIN, ONCE
from fusionkit.report.figures.confusions import counted
from fusionkit.report.figures.weights import language_of
from fusionkit.report.predictions import AllPredictions
from fusionkit.report.predictions_panel import inside_of
from fusionkit.report.render import draw
from fusionkit.report.report_data import ReportData, read_report_data
from fusionkit.report.styles import FAMILIES, distance, styles_of
from fusionkit.report.tables import compared, matrix_tables
from fusionkit.report.theme import LIGHT
from fusionkit.report.write import json_for_html
from fusionkit.runs.folder import RunsFolder
from fusionkit.specs import RunSpec
from fusionkit.store import open_store


@pytest.fixture(scope="module")
def records(made: Any) -> list[dict[str, Any]]:
    """The records as they lie on disk."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(made.runs.glob("*/run.json"))]


def only(records: list[dict[str, Any]], **spec: Any) -> list[dict[str, Any]]:
    """The records with these values in their spec."""
    return [one for one in records if all(one["spec"][name] == value for name, value in spec.items())]


def data_of(study: ReportData, name: str) -> pd.DataFrame:
    """The rows of one figure."""
    (drawn,) = draw(study, [name])
    return drawn.data


def test_few_shot_curves_have_the_mean_and_the_t_interval(study: ReportData, records: Any) -> None:
    found = data_of(study, "shots")
    assert len(found) == 2 * 9
    for row in (SimpleNamespace(**each) for each in json.loads(found.to_json(orient="records"))):
        shots = None if row.shots == "all" else int(row.shots)
        runs = only(records, label="slots", fusion=row.method, shots=shots)
        scores = [100 * one["score" if row.split == "test" else "validation_score"] for one in runs]
        assert row.task.endswith(f" · {row.split} (F1, %)")
        low, high = stats.t.interval(0.95, len(scores) - 1, np.mean(scores), stats.sem(scores) or 1e-12)
        assert row.runs == len(scores) == 2
        assert row.score == pytest.approx(np.mean(scores))
        assert (row.low, row.high) == pytest.approx((low, high), abs=1e-6)


def test_curves_have_each_epoch_and_its_steps_and_seconds(study: ReportData, records: Any) -> None:
    losses = data_of(study, "loss-by-step").query("method == 'linear'")
    curves = [one["curve"] for one in only(records, label="slots", fusion="linear", shots=None)]
    assert losses["value"].tolist() == pytest.approx([np.mean([c[e]["loss"] for c in curves]) for e in range(6)])
    assert losses["step"].tolist() == [3, 6, 9, 12, 15, 18]  # 42 examples in batches of 16
    seconds = data_of(study, "loss-by-seconds").query("method == 'linear'")
    runs = only(records, label="slots", fusion="linear", shots=None)
    times = [np.array(one["epoch_seconds"]) * one["seconds_alone"] / one["seconds"] for one in runs]
    assert seconds["seconds"].tolist() == pytest.approx(np.mean(times, axis=0).tolist())
    encoding = sum(study.encode_seconds[runs[0]["spec"]["store"]].values())
    with_encoding = data_of(study, "loss-by-seconds-from-text").query("method == 'linear'")
    assert with_encoding["from_text"].tolist() == pytest.approx([encoding + each for each in seconds["seconds"]])
    scores = data_of(study, "score-by-epoch").query("method == 'linear'")
    smallest = [one["curve"] for one in only(records, label="slots", fusion="linear", shots=2)]
    for panel, those in {"slots · 2 a class (F1, %)": smallest, "slots (F1, %)": curves}.items():
        assert scores[scores["task"].str.endswith(panel)]["value"].tolist() == pytest.approx(
            [100 * np.mean([c[e]["validation_score"] for c in those]) for e in range(6)]
        )


def test_layer_weights_are_those_of_the_records(study: ReportData, records: Any) -> None:
    of_slots = "task == 'desk-de · slots' and method == 'attention'"
    found = data_of(study, "layer-weights").query(of_slots)
    those = [one["layer_weights"] for one in only(records, label="slots", fusion="attention", shots=None)]
    assert found["layer"].tolist() == [0, 3, 6]
    assert found["weight"].tolist() == pytest.approx(np.mean(those, axis=0).tolist())
    each = data_of(study, "layer-weights-by-seed").query(of_slots)
    assert sorted(each["weight"]) == pytest.approx(sorted(np.ravel(those)))


@pytest.mark.parametrize(("layers", "told"), [(13, {".12"}), (25, {""})])
def test_numbers_stand_in_cells_that_are_wide_enough(study: ReportData, layers: int, told: set[str]) -> None:
    found = data_of(study, "layer-weights")
    one = found[found["method"] == "linear"].iloc[:1].drop(columns=["layer", "weight"])
    wide = one.merge(pd.DataFrame({"layer": range(layers), "weight": 0.123}), how="cross")
    drawn = FIGURES["layer-weights"].chart(study, wide).to_dict()
    assert {row["told"] for rows in drawn["datasets"].values() for row in rows} == told


def test_a_single_layer_stands_at_its_number(study: ReportData, records: Any) -> None:
    found = data_of(study, "single-layers")
    probes = found[found["layer"].notna()]
    assert probes["layer"].tolist() == [0, 3]
    for row in probes.itertuples():
        scores = [one["score"] for one in only(records, label="slots", fusion=f"layer:{row.layer:.0f}", shots=None)]
        assert row.score == pytest.approx(100 * np.mean(scores))
    assert set(found[found["layer"].isna()]["method"]) == {"last", "linear", "attention", "attention:scale=yes"}


def test_what_a_task_needs_of_the_encoder_stands_by_layer_and_by_way(tmp_path: Path) -> None:
    runs = [
        ("last", None, "frozen", [3]), ("layer:1", None, "frozen", [1]), ("attention", None, "frozen", [0, 1, 2, 3]),
        ("attention", "0,1", "frozen", [0, 1]), ("attention", "1,2", "frozen", [1, 2]), ("last", None, "top:1", [3]),
        ("last", None, "top:3", [3]), ("last", None, "full", [3]),
    ]  # fmt: skip
    for number, (fusion, layers, method, read) in enumerate(runs):
        for seed in (0, 1):
            spec = RunSpec(
                store="s", task="tagging", label="tags", head="tagger", fusion=fusion, fusion_layers=layers,
                method=method, data_seed=seed, init_seed=seed,
            )  # fmt: skip
            told = {"status": "finished", "data": "corpus", "encoder": "e", "rows": "tokens", "metric": "f1"}
            scores = {"score": (number + seed) / 10, "validation_score": 0.5, "scores": {"validation": {"f1": 0.5}}}
            own = {"layers": read, "evaluated": "corpus", "sides": 1, "init_data": None, "seconds": 1.0}
            RunsFolder(tmp_path).write(spec, {"spec": spec.to_dict(), **told, **scores, **own}, {})
    study = read_report_data([tmp_path])
    found = FIGURES["layers-needed"].data(study)
    assert found is not None
    by_place = {(row.method, row.k): row.score for row in found.itertuples()}
    assert by_place == {
        ("layer k alone", 3): pytest.approx(5.0), ("layer k alone", 1): pytest.approx(15.0),
        ("attention over 0 … k", 3): pytest.approx(25.0), ("attention over 0 … k", 1): pytest.approx(35.0),
        ("last · layers above k trained", 2): pytest.approx(55.0),
        ("last · layers above k trained", 0): pytest.approx(65.0),
    }  # fmt: skip
    assert FIGURES["layers-needed"].chart(study, found).to_dict()


def test_encoding_once_is_what_was_measured(study: ReportData, records: Any, made: Any) -> None:
    found = data_of(study, "break-even")
    records = [each for each in records if each["spec"]["fusion"] != "majority"]  # which reads no states
    parts = [json.loads(path.read_text()) for path in (made.store / "parts").glob("*.json")]
    encoded = sum(part["seconds"] for part in parts)
    once = found[found["way"] == ONCE]["minutes"].to_numpy()
    assert once[0] == pytest.approx(encoded / 60)
    assert once[-1] == pytest.approx((encoded + sum(one["seconds"] for one in records)) / 60)
    again = found[found["way"] == AGAIN]["minutes"].to_numpy()
    assert again[0] == 0
    split = {
        name: sum(part["seconds"] for part in parts if part["split"] == name)
        for name in ("train", "validation", "test")
    }
    learned = [42 if one["draw"] is None else len(one["draw"]) for one in records]
    passes = sum(6 * (split["train"] * count / 42 + split["validation"]) + split["test"] for count in learned)
    assert again[-1] * 60 == pytest.approx(passes + sum(one["seconds_alone"] for one in records))
    # Of six epochs only the last was scored, over 2 examples of validation, and the best of them over all of it.
    whole, others = open_store(made.store).manifest["splits"]["validation"]["examples"], {"validation_score": None}
    sparse = {
        name: {**one, "watched": 2, "curve": [*({**each, **others} for each in one["curve"][:-1]), one["curve"][-1]]}
        for name, one in study.records.items()
        if one["curve"]
    }
    some = data_of(replace(study, records={**study.records, **sparse}), "break-even")
    fewer = len(records) * (6 - 1 - 2 / whole) * split["validation"]
    assert some["minutes"].max() * 60 == pytest.approx(again[-1] * 60 - fewer)
    through = {name: {**one, "spec": {**one["spec"], "method": "full"}} for name, one in study.records.items()}
    assert FIGURES["break-even"].data(replace(study, records=through)) is None  # they need no store


def test_a_head_pays_its_share_of_the_encoding(study: ReportData, records: Any, made: Any) -> None:
    found = data_of(study, "seconds-from-text").query("method == 'linear'")
    parts = [json.loads(path.read_text()) for path in (made.store / "parts").glob("*.json")]
    encoded = sum(part["seconds"] for part in parts)
    runs = only(records, label="slots", fusion="linear", shots=None)
    alone = np.mean([one["seconds_alone"] for one in runs])
    seconds = found.set_index("heads")["seconds"]
    assert seconds.to_dict() == pytest.approx({n: encoded / n + alone for n in (1, 10, 100)})


@pytest.mark.parametrize(
    ("name", "field"),
    [("bytes", "kept_bytes"), ("memory", "peak_memory_alone"), ("parameters", "trained_parameters"),
     ("seconds", "seconds_alone")],
)  # fmt: skip
def test_a_cost_is_the_mean_of_the_runs_and_the_cheapest_is_worth_it(
    study: ReportData, records: Any, name: str, field: str
) -> None:
    slots = data_of(study, name).query("task == 'desk-de · slots (F1, %)'").set_index("method")
    for method in ("last", "linear"):
        runs = only(records, label="slots", fusion=method, shots=None)
        assert slots.loc[method, name] == pytest.approx(np.mean([one[field] for one in runs]))
    assert slots.sort_values(name)["pareto"].iloc[0]


def test_a_store_has_paid_for_itself_from_the_first_head_that_makes_it_cheaper(
    study: ReportData, made: Any, tmp_path: Path
) -> None:
    store = open_store(str(made.store))
    encoded = sum(json.loads(path.read_text())["seconds"] for path in (made.store / "parts").glob("*.json"))
    # In seconds of the encoding: over the store a tenth and a third, from the text a half, and less than the slower.
    seconds = {("last", "frozen"): 0.1, ("linear", "frozen"): 0.35, ("last", "full"): 0.5, ("last", "bitfit"): 0.22}
    for (fusion, method), share in seconds.items():
        for seed in (0, 1):
            spec = RunSpec(
                store=store.digest, task="tagging", label="slots", head="tagger", fusion=fusion, method=method,
                data_seed=seed, init_seed=seed,
            )  # fmt: skip
            told = {"status": "finished", "data": "desk", "encoder": "e", "rows": "words", "metric": "f1"}
            scores = {"score": 0.5, "validation_score": 0.5, "scores": {"validation": {"f1": 0.5}}}
            own = {"layers": [6], "evaluated": "desk", "sides": 1, "init_data": None, "seconds": 1.0}
            costs = {"seconds_alone": share * encoded}
            RunsFolder(tmp_path).write(spec, {"spec": spec.to_dict(), **told, **scores, **own, **costs}, {})
    study = read_report_data([tmp_path], [made.store])
    found = from_text.data(study)
    assert found is not None
    for untold in ("bytes", "memory"):
        assert FIGURES[untold].data(study) is None
    paid = found.drop_duplicates("method").set_index("method")

    def first(over: float, through: float) -> int | None:
        return next((n for n in range(1, 1000) if 1 + n * over < n * through), None)

    assert paid.loc["last · full", "paid_from"] == first(0.1, 0.5) == 3
    assert paid.loc["last · full", "paid_at_most"] == first(0.35, 0.5) == 7
    assert paid.loc["last · bitfit", "paid_from"] == first(0.1, 0.22) == 9
    assert first(0.35, 0.22) is None
    assert paid["paid_at_most"].isna()["last · bitfit"]
    assert paid.loc[["last", "linear"], "paid_from"].isna().all()
    full = found[found["method"] == "last · full"]
    assert full["seconds"].tolist() == pytest.approx([0.5 * encoded] * 3)  # it does not read the store
    assert "3 to 7 (last · full), 9 or more (last · bitfit)" in from_text.about(found)
    at_once = found.assign(paid_from=1.0, paid_at_most=1.0)
    assert from_text.about(at_once).startswith("One encoding and one head over it take fewer seconds")
    assert "9 or more" in from_text.about(at_once.where(at_once["method"] != "last · bitfit", found))


def test_what_is_looked_at_has_the_recorded_score(study: ReportData, predictions: AllPredictions) -> None:
    tags = [run for run in predictions.runs if run.kind == "spans"]
    assert len(tags) == 6
    for run in tags:
        record = study.records[run.digest]
        assert seqeval.metrics.f1_score(run.gold, run.predicted) == pytest.approx(record["score"])
        assert sum(row["count"] for row in counted(run)) == sum(map(len, run.gold))
    weights = next(run for run in tags if run.method == "attention").weights
    assert weights is not None
    assert weights.sum(axis=1) == pytest.approx(np.ones(len(weights)), abs=1e-5)
    assert next(run for run in tags if run.method == "last").weights is None


def test_the_words_are_the_sources_own(predictions: AllPredictions, made: Any) -> None:
    run = next(run for run in predictions.runs if run.kind == "spans")
    examples = open_store(str(made.store))["test"].examples
    assert run.tokens == [list(words) for words in examples["tokens"]]
    assert run.gold == [list(tags) for tags in examples["slots"]]


def test_weights_by_label_weigh_rows_by_their_number(study: ReportData, predictions: AllPredictions) -> None:
    found = data_of(study, "layer-weights-by-label")
    slots = found[found["task"] == "desk-de · slots"]
    run = next(one for one in predictions.runs if one.kind == "spans" and one.method == slots["method"].iloc[0])
    assert run.weights is not None
    mean = slots.assign(part=slots["weight"] * slots["rows"]).groupby("layer")["part"].sum() / len(run.weights)
    assert mean.tolist() == pytest.approx(run.weights.mean(axis=0).tolist(), abs=1e-5)
    assert "O" in set(slots["label"])


def test_a_page_holds_no_more_rows_of_weights_than_it_may(predictions: AllPredictions) -> None:
    inside = inside_of(predictions.runs, rows=300)
    assert inside["looks"]
    sources = [inside["sources"][run["source"]] for run in inside["looks"] if run["weights"]]
    kept = sum(len(tokens) for source in sources for tokens in source["tokens"])
    assert 0 < kept <= 300


def test_every_figure_stands_in_a_section_of_the_page() -> None:
    listed = [name for *_, names in SECTIONS for name in names]
    assert {*listed, "confusion"} == set(FIGURES)  # confusions are part of the look inside
    assert len(listed) == len(FIGURES) - 1


def test_every_figure_is_drawn_or_says_what_it_needs(made: Any, study: ReportData, tmp_path: Path) -> None:
    names = {Path(path).name.split(".")[0] for path in made.told["figures"]}
    # One language alone, one number of epochs, one choice of layers, no adapters taken away.
    assert set(FIGURES) - names == {"layer-weights-by-language", "epochs", "layers-needed", "ablation"}
    for name in names:
        for suffix, start in ((".svg", b"<svg"), (".png", b"\x89PNG"), (".csv", b"")):
            assert (made.figures / f"{name}{suffix}").read_bytes().startswith(start)
        assert len(pd.read_csv(made.figures / f"{name}.csv")) > 1
    with pytest.raises(UsageError, match="no data for the figure 'layer-weights-by-language'"):
        draw(study, ["layer-weights-by-language"])
    with pytest.raises(UsageError, match="did you mean 'parameters'"):
        draw_figures([made.runs], tmp_path, ["parameter"])


def test_tasks_that_were_tried_with_other_methods_stand_in_another_table(study: ReportData) -> None:
    table, _ = compared(study)
    assert len(matrix_tables(study, table)) == 1
    apart = {"slots": ("last", "linear"), "intent": ("attention",)}
    kept = np.array([row["method"] in apart[row["task_name"].split(" · ")[1]] for _, row in table.iterrows()])
    second, first = matrix_tables(study, table[kept & (table["shots_name"] == "all")])
    assert {column["label"].split(" · ")[1] for column in first["columns"][1:]} == {"intent"}
    assert [row[0]["t"] for row in first["rows"] if "m" in row[0]] == ["attention"]  # and the floor
    assert {cell["t"] for row in second["rows"] for cell in row if cell["t"] == "–"} == set()


def test_an_interval_ends_where_scores_do() -> None:
    assert bounds_of("f1") == (0, 1)
    assert bounds_of("pearson") == (-1, 1)
    assert bounds_of("perplexity") == (0, math.inf)


def test_a_language_is_read_off_a_name() -> None:
    assert [language_of(name) for name in ("travel-desk-de", "xglue_FR", "mtop.en", "atis", "demo")] == [
        "German", "French", "English", None, None
    ]  # fmt: skip


def contrast(one: str, other: str) -> float:
    """Contrast of two ``#rrggbb``, 1 to 21: ``(L₁ + 0.05) / (L₂ + 0.05)`` of relative luminances (WCAG 2.2)."""
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_colours_are_seen_on_both_pages_and_each_fusion_has_its_own() -> None:
    sheet = resources.files("fusionkit.report").joinpath("page", "page.css").read_text(encoding="utf-8")
    pairs = re.findall(r"--(\w+): light-dark\((#\w{6}), (#\w{6})\)", sheet)
    light, dark = ({name: pair[theme] for name, *pair in pairs} for theme in (0, 1))
    assert LIGHT.items() <= light.items()
    for style in FAMILIES.values():
        assert contrast(style.colour, light["paper"]) >= 3
        assert contrast(style.colour, dark["paper"]) >= 3
    colours = [style.colour for style in FAMILIES.values()]
    assert len({style.shape for style in FAMILIES.values()}) == len(FAMILIES) >= 11
    assert min(distance(*pair) for pair in combinations(colours, 2)) > 0.045
    for theme in (light, dark):
        assert contrast(theme["quiet"], theme["paper"]) >= 4.5
        assert contrast(theme["ink"], theme["cell"]) >= 4.5
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)  # WebAIM's own example


def test_each_method_and_fusion_has_a_style_of_its_own_and_keeps_it() -> None:
    methods = ["last", "last · bitfit", "last · houlsby:8", "last · houlsby:64", "attention", "attention · houlsby:8"]
    styles = styles_of(methods)
    for part in ("colour", "shape"):
        assert len({getattr(styles[method], part) for method in methods}) == len(methods)
    assert (styles["last"], styles["attention"]) == (FAMILIES["last"], FAMILIES["attention"])
    assert styles["last · bitfit"].dashes != styles["last"].dashes
    # A name of one chart has the style of its fusion and method, and takes nothing from the others.
    more = styles_of(methods, ["attention over 0 … k", "linear", "last · houlsby:64"])
    assert more["attention over 0 … k"] == styles["attention"]
    assert more["linear"].colour not in {style.colour for style in styles.values()}
    assert {method: more[method] for method in methods} == styles
    assert len(styles_of([f"ladder:{rank}" for rank in range(1, 40)])) == 39  # more than there are colours


def test_red_blind_and_green_blind_eyes_are_asked() -> None:
    assert distance("#000000", "#ffffff") == pytest.approx(1, abs=1e-6)
    assert distance("#c00000", "#5a5a00") < 0.08 < distance("#c00000", "#0000c0")


def test_no_text_can_end_or_begin_an_element() -> None:
    hostile = {"a</script><!--": ["<script>", "]]>", "\u2028&", float("nan")]}
    text = json_for_html(hostile)
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"a</script><!--": ["<script>", "]]>", "\u2028&", None]}


def test_a_missing_library_is_named_with_its_extra(made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def gone(name: str, package: str | None = None) -> Any:
        if name == "vl_convert":
            raise ImportError(f"No module named {name!r}")
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", gone)
    with pytest.raises(UsageError, match=r"pip install 'fusionkit\[report\]'"):
        write_report([made.runs], tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_is_gone_is_said_and_left_out(made: Any, tmp_path: Path) -> None:
    moved = tmp_path / "far" / "away" / "runs"
    moved.mkdir(parents=True)
    for path in made.runs.glob("*/run.json"):
        (moved / path.parent.name).mkdir()
        (moved / path.parent.name / "run.json").write_bytes(path.read_bytes())
    facts = write_report([moved], tmp_path / "report.html", baseline="linear")
    assert facts.runs == 22
    assert any("is not there" in told for told in facts.left_out)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert '"there":false' in text
    with pytest.raises(UsageError, match="unknown method"):
        write_report([moved], tmp_path / "report.html", baseline="liner")


def test_the_command_of_a_page_makes_that_page(study: ReportData) -> None:
    told = provenance_of(replace(study, given_stores=[Path("s")]), "linear", "A title", "No rates.", Path("page.html"))
    assert told["command"].endswith("--out page.html --store s --title 'A title' --about 'No rates.' --baseline linear")


def test_the_command_of_a_store_has_what_its_identity_has(study: ReportData) -> None:
    (store,) = study.stores.values()
    [told] = provenance_of(study, None, None, None, Path("page.html"))["stores"]
    assert "--rows words" in told["encode"]
    assert "--layers 0,3,6" in told["encode"]
    assert "--limit" not in told["encode"]
    identity = {**store.manifest["identity"], "limit": 30, "compute_dtype": "bfloat16", "mlm": {"mask_share": 0.3}}
    other: Any = SimpleNamespace(
        layers=store.layers, path=store.path, manifest={**store.manifest, "identity": identity}
    )
    [told] = provenance_of(replace(study, stores={store.digest: other}), None, None, None, Path("page.html"))["stores"]
    for words in ("--limit 30", "--compute-dtype bfloat16", "--mask-share 0.3"):
        assert words in told["encode"]
