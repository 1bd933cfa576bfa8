"""A user's mistake is one message that says what to do, the right exit code, and nothing half-written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]

# Command lines about {places}, each with its exit code and what its message must hold.
MISTAKES: dict[str, tuple[int, str, str]] = {
    "encode {missing}.jsonl --out {out}": (2, "no such source", "check the path"),
    "encode {corpus} --out {out} --text txet": (2, "--text: unknown column 'txet'", "did you mean 'text'?"),
    "encode {empty} --out {out}": (1, "train.csv is empty", "0 bytes"),
    "encode {broken} --out {out}": (1, "train.jsonl: line 3 is broken JSON", "mend or remove the line"),
    "encode {ragged} --out {out}": (1, "train, example 1: 'tags' does not match 'tokens'", "2 tags, one a word"),
    "encode {corpus} --out {out} --encoder minilmm": (2, "unknown encoder 'minilmm'", "did you mean 'minilm'?"),
    "encode {corpus} --out {out} --layers 0,9": (2, "these layers do not exist", "within 0…6"),
    "encode {text} --out {out} --device cpu --compute-dtype tf32": (2, "tf32 needs an NVIDIA GPU", "or bfloat16"),
    "encode {text} --out {out} --rows words": (2, "rows of words need words", "choose --rows tokens, cls or mean"),
    "encode {text} --out {folder}": (2, "folder exists and is no store", "nothing was touched"),
    "encode {text} --out {small}": (2, "holds something else", "--overwrite to replace it"),
    "fit {small} --out {out} --fusion atention": (2, "unknown fusion 'atention'", "did you mean 'attention'?"),
    "fit {small} --out {out} --fusion layer:2": (2, "no layer that fusion 'layer:2' reads", "layers 6"),
    "fit {small} --out {out} --fusion linear:nrm=token": (
        2,
        "unknown option of fusion 'linear'",
        "did you mean 'norm'?",
    ),
    "fit {small} --out {out} --fusion linear:norm=tok": (2, "unknown norm of fusion 'linear'", "did you mean 'token'?"),
    "fit {small} --out {out} --fusion extra-layers": (2, "'extra-layers' is not complete", "extra-layers:n"),
    "fit {small} --out {out} --fusion-layers -2:": (2, "the store has no layer 5", "some of layers 6"),
    "fit {store} --out {out} --label slots --fusion-layers 0,3": (2, "no layer that fusion 'last' reads", "layer 6"),
    "fit {pooled} --out {out} --fusion extra-layers:1": (2, "rows of mean are one an example", "--rows tokens"),
    "fit {small} --out {out} --head tagger": (2, "unknown head for classification 'tagger'", "one of bcn, classifier"),
    "fit {small} --out {out} --task clasification": (2, "unknown task", "did you mean 'classification'?"),
    "fit {small} --out {out} --task tagging": (2, "has no column for the task tagging", "name it with --label"),
    "fit {store} --out {out} --task tagging --label intent": (2, "does not suit the task tagging", "single values"),
    "fit {store} --out {out}": (2, "has tags and labels: either can be learned", "choose --task from"),
    "fit {store} --out {out} --label intnet": (2, "unknown column 'intnet'", "did you mean 'intent'?"),
    "fit {folder} --out {out}": (2, "folder is no store", "something else"),
    "fit {small} --out {folder}": (2, "folder is no folder of runs", "nothing was touched"),
    "fit {small} --out {out} --shots 7": (2, "smaller than the draw", "7 shots × 2 classes = 14"),
    "fit {small} --out {out} --shots 1 --shots 7": (2, "smaller than the draw", "choose fewer --shots"),
    "fit {small} --out {out} --task regression": (2, "does not suit the task regression", "a column of numbers"),
    "fit {store} --out {out} --label slots --head crf --label-smoothing 0.1": (
        2,
        "head 'crf' cannot use --label-smoothing",
        "one of the heads classifier, linear-classifier, tagger",
    ),
    "fit {small} --out {out} --warmup 1": (2, "warmup is out of range", "a share of the steps"),
    "fit {small} --out {out} --lr 0": (2, "lr is out of range", "above 0"),
    "verify {missing}": (2, "is no store", "a path that does not exist"),
    "verify {small} --device cpu": (2, "--device is for loading the encoder", "add one of them, or leave it out"),
    "fit {small} --out {out} --pool cls --pool mean": (2, "--pool takes one value", "--pool 2 times"),
    "encode {small} --out {out} --layers 0 --layers 6": (2, "--layers takes one value", "--layers 2 times"),
    "info {missing}": (2, "is neither a store nor a folder of runs", "a path that does not exist"),
    "results {missing}": (2, "holds no finished run", "a path that does not exist"),
    "results {folder}": (2, "holds no finished run", "run `fusionkit fit` first"),
    "results {runs} --format csv --json": (2, "--json and --format name two formats", "leave one of them out"),
    "results {runs} --by fusoin": (2, "unknown column of the results 'fusoin'", "did you mean 'fusion'?"),
    "plan --tasks 2 --fusion linear": (2, "--fusion is what each task has on top", "--method full --fusion linear"),
    "plan --tasks 2 --method pals --budget-per-task 1": (2, "nothing of it stays within 1 weight", "write the number"),
    "encod {corpus}": (2, "unknown command 'encod'", "did you mean 'encode'?"),
}
# Where the rest of the message says it already.
LEFT_OUT = {
    "encode {corpus} --out {out} --text txet": "received",
    "encode {corpus} --out {out} --encoder minilmm": "received",
    "encode {corpus} --out {out} --layers 0,9": "remedy",
    "encode {text} --out {small}": "expected received",
    "fit {small} --out {out} --lr 0": "remedy",
}


@pytest.fixture(scope="module")
def places(
    corpus: Path, store: Path, small: Path, write_source: Any, fusionkit: Command, tmp_path_factory: Any
) -> dict[str, Path]:
    """What the command lines are about."""
    base: Path = tmp_path_factory.mktemp("places")
    for name in ("folder", "broken", "empty"):
        (base / name).mkdir()
    (base / "folder" / "mine.txt").write_text("mine")
    (base / "broken" / "train.jsonl").write_text('{"text": "a"}\n\n{"text": "b"\n')
    (base / "empty" / "train.csv").touch()
    words = [{"tokens": ["a", "b"], "tags": ["O", "B-x"]}] * 3
    words[1] = {"tokens": ["a", "b"], "tags": ["O"]}
    runs = base / "runs"
    assert fusionkit("fit", small, "--out", runs, "--fusion", "last", "--epochs", 1).code == 0
    texts, pooled = write_source(train=[{"text": "one", "label": "a"}] * 3), base / "pooled"
    assert fusionkit("encode", texts, "--out", pooled, "--rows", "mean", "--layers", "6").code == 0
    return {
        "pooled": pooled, "corpus": corpus, "store": store, "small": small, "runs": runs, "missing": base / "missing",
        "ragged": write_source(train=words), "text": texts,
        **{name: base / name for name in ("folder", "broken", "empty")},
    }  # fmt: skip


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_one_message_and_changes_nothing(
    line: str, places: dict[str, Path], fusionkit: Command, tmp_path: Path
) -> None:
    code, *says = MISTAKES[line]
    before = {path: path.read_bytes() for path in places["folder"].rglob("*")}
    # Split before the places are put in: a path may hold spaces.
    done = fusionkit(*(part.format(out=tmp_path / "out", **places) for part in line.split()))
    assert done.code == code, done.err
    message = done.err[done.err.index("fusionkit: ") :]
    parts = {"expected", "received", "remedy"} - set(LEFT_OUT.get(line, "").split())
    for words in (*says, *(f"\n  {part}: " for part in parts)):
        assert words in message
    assert done.out == ""
    assert list(tmp_path.iterdir()) == []
    assert {path: path.read_bytes() for path in places["folder"].rglob("*")} == before


def test_every_place_and_both_exit_codes_are_tried(places: dict[str, Path]) -> None:
    assert len(MISTAKES) == 45
    assert set(LEFT_OUT) <= set(MISTAKES)
    assert {name for name in places if any(f"{{{name}}}" in line for line in MISTAKES)} == set(places)
    assert {code for code, *_ in MISTAKES.values()} == {1, 2}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("fit {small} --out {out} --fusoin last", "--fusion"),
        ("fit {small} --out {out} --epochs many", "expected: a whole number, 1 or more\n  received: many"),
        ("fit {small}", "fit needs --out\n  expected: Folder that keeps the runs."),
        ("fit {small} --out {out} --seeds 0", "--seeds cannot be 0"),
        ("encode {corpus} --out {out} --rows word", "did you mean 'words'?"),
        ("results {runs} --format html", "unknown --format 'html'\n  expected: one of csv"),
        ("fit", "fit needs STORE[:SHARE]...\n  expected: fusionkit fit [OPTIONS] STORE"),
        ("fit {small} --out", "Option '--out' requires an argument"),
        ("results {runs} {runs}", "results: got unexpected extra argument"),
        ("--nosuch", "fusionkit has no option --nosuch"),
    ],
)
def test_a_wrong_option_is_told_by_its_name(
    line: str, says: str, places: dict[str, Path], fusionkit: Command, tmp_path: Path
) -> None:
    done = fusionkit(*(part.format(out=tmp_path / "out", **places) for part in line.split()))
    assert done.code == 2
    assert says in done.err
    assert done.err.startswith("fusionkit: ")
    assert "  remedy:   " in done.err
    assert (done.out, list(tmp_path.iterdir())) == ("", [])
