"""The commands over plain text and a tiny encoder, as a user gives them."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner

from fusionkit.cli.main import group
from fusionkit.cli.tables.summary_table import summary_table
from fusionkit.errors import DataError, EncoderError, UsageError
from fusionkit.runs.tables.paper_tables import latex
from fusionkit.sources import open_source

WIKITEXT = Path(__file__).parents[3] / "shared" / "data" / "wikitext2"
LINES = ["the bad cab", "", " = a head = ", "   ", "feed a bee", "", "a bag he had a bed a cafe"]


def run(*arguments: str) -> Any:
    return CliRunner().invoke(group, list(arguments), catch_exceptions=False)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    folder = tmp_path / "text"
    folder.mkdir()
    for split in ("train", "valid", "test"):
        (folder / f"{split}.txt").write_text("\n".join(LINES * 4) + "\n", encoding="utf-8")
    return folder


def test_a_line_is_an_example_and_empty_ones_are_none(text: Path) -> None:
    found = open_source(str(text), lines=True)
    assert list(found.splits) == ["train", "validation", "test"]
    wanted = [line for line in LINES * 4 if line.strip()]
    assert found.splits["validation"].head().to_pydict() == {"text": wanted}
    assert sorted(found.notes) == [f"{split}.txt: 12 empty lines left out" for split in ("test", "train", "valid")]
    assert open_source(str(text / "valid.txt"), lines=True).notes == ["valid.txt: 12 empty lines left out"]


def test_a_file_of_empty_lines_holds_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n \n\n", encoding="utf-8")
    with pytest.raises(DataError, match="holds no text") as caught:
        open_source(str(tmp_path / "a.txt"), lines=True)
    assert caught.value.received == "3 empty lines"


def test_without_the_task_txt_is_conll_as_before(text: Path) -> None:
    with pytest.raises(DataError, match=r"line 1 has ragged|line 3"):
        open_source(str(text / "train.txt"))


def test_from_text_to_perplexities(text: Path, checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    store, runs = str(tmp_path / "s"), str(tmp_path / "runs")
    encode = ["encode", str(text), "--encoder", str(checkpoint("roberta")), "--out", store, "--task", "mlm"]
    made = json.loads(run(*encode, "--mask-seed", "3", "--json").stdout)
    assert made["rows"] == "masked-tokens"
    assert made["identity"]["mlm"]["mask_seed"] == 3
    shown = run("info", store).stdout
    assert "masked    15% of the sub-tokens, seed 3 · LM head with gelu" in shown
    assert "files are intact" in run("verify", store, "--sample", "5").stdout
    records = json.loads(run("fit", store, "--out", runs, "--epochs", "1", "--json").stdout)
    assert [record["fusion"] for record in records] == ["last", "linear", "concat-affine", "attention"]
    assert {record["metric"] for record in records} == {"perplexity"}
    table = run("results", runs).stdout
    assert f"{records[0]['score']:.1f} " in table
    with pytest.raises(UsageError, match="the task mlm trains over one store, from new weights"):
        run("fit", f"{store}:50%", "--out", runs)


def test_minilm_is_refused_before_any_work(text: Path, tmp_path: Path) -> None:
    with pytest.raises(EncoderError, match="encoder 'minilm' has no LM head"):
        run("encode", str(text), "--out", str(tmp_path / "s"), "--task", "mlm")
    assert not (tmp_path / "s").exists()


def test_from_text_through_an_encoder_without_a_head(text: Path, checkpoint: Any, tmp_path: Path) -> None:
    """A plan without states, an LM head of embeddings, a share of validation; the report's command makes the store."""
    store, runs, page = str(tmp_path / "s"), str(tmp_path / "runs"), tmp_path / "page.html"
    how = ["--encoder", str(checkpoint("bert")), "--task", "mlm", "--lm-head", "embeddings"]
    run("encode", str(text), *how, "--out", store, "--parts", "0/1")
    tuned = ("--method", "full", "--fusion", "ladder:2", "--validate-on", "50%", "--epochs", "2", "--batch-size", "4")
    (record,) = json.loads(run("fit", store, *tuned, "--out", runs, "--json").stdout)
    assert (record["head"], record["rows"], record["status"]) == ("lm-head-trained", "masked-tokens", "finished")
    run("encode", str(text), *how, "--out", store)
    assert "seed 0 · LM head of the embeddings" in (shown := run("info", store).stdout)
    assert "masked" not in next(line for line in shown.splitlines() if line.strip().startswith("split"))
    run("fit", store, "--fusion", "last", "--epochs", "2", "--batch-size", "4", "--out", runs)
    run("report", runs, "--out", str(page), "--figures", str(tmp_path / "figures"), "--store", store)
    assert "--lm-head embeddings" in page.read_text(encoding="utf-8")
    # 16 lines, of which some have no masked sub-token: 4 texts a step.
    steps = pd.read_csv(tmp_path / "figures" / "loss-by-step.csv")["step"]
    assert set(steps) == {record["steps"] // 2, record["steps"]}
    assert record["steps"] <= 2 * 4


@pytest.mark.skipif(not WIKITEXT.is_dir(), reason=f"no WikiText-2 in {WIKITEXT}")
@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_lines_of_wikitext(kind: str, checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    for split in ("train", "validation", "test"):
        with (WIKITEXT / f"{split}.txt").open(encoding="utf-8") as file:
            (tmp_path / "text" / f"{split}.txt").write_text("".join(islice(file, 30)), encoding="utf-8")
    store = str(tmp_path / "s")
    encode = ["encode", str(tmp_path / "text"), "--encoder", str(checkpoint(kind)), "--out", store, "--task", "mlm"]
    done = run(*encode, "--dtype", "float32", "--json")
    assert "empty lines left out" in done.stderr
    assert "texts cut to 64 sub-tokens" in done.stderr
    made = json.loads(done.stdout)
    for split in made["splits"].values():
        assert 0.05 < split["rows"] / split["tokens"] < 0.25
    runs = str(tmp_path / "runs")
    records = json.loads(run("fit", store, "--out", runs, "--fusion", "last", "--fusion", "dwatt", "--json").stdout)
    last, dwatt = (record["validation_score"] for record in records)
    assert 1 < dwatt < last


def frame(metric: str, means: list[float]) -> pd.DataFrame:
    rows = [
        {"task": "t", "label": "l", "fusion": f"f{k}", "metric": metric, "runs": 2, "failed": 0, "mean": mean,
         "std": 0.25, "low": mean - 1, "high": mean + 1, "validation": mean, "parameters": 1.0, "seconds_alone": 1.0}
        for k, mean in enumerate(means)
    ]  # fmt: skip
    best = min(means) if metric == "perplexity" else max(means)
    return pd.DataFrame(rows).assign(tied=[mean == best for mean in means])


def test_perplexities_are_shown_as_they_are_and_the_lowest_is_best() -> None:
    lines = latex(frame("perplexity", [12.5, 8.25, 9.0])).splitlines()
    assert [line for line in lines if "textbf" in line] == [
        r"t & l & f1 & \textbf{8.2} $\pm$ 0.2 & 7.2 \dots 9.2 & 2 & 1 \\"
    ]
    cells = summary_table(frame("perplexity", [12.5, 8.25]))
    shown = [list(column.cells) for column in cells.columns]
    assert ["12.5 ± 0.2", "8.2 ± 0.2"] in shown
    assert ["11.5 … 13.5", "7.2 … 9.2"] in shown
    lines = latex(frame("accuracy", [0.5, 0.25])).splitlines()
    assert [line for line in lines if "textbf" in line] == [
        r"t & l & f0 & \textbf{50.0} $\pm$ 25.0 & $-$50.0 \dots 150.0 & 2 & 1 \\"
    ]
