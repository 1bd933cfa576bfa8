"""A sweep as a file: the runs that the same flags make, and each mistake one message."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fusionkit.errors import UsageError
from fusionkit.fit import RunsFolder, expand, fit
from fusionkit.fit.sweep.blocks import expand_blocks
from fusionkit.fit.sweep.file import SweepFile, overlaid, read_sweep
from fusionkit.options.tables import FIT
from fusionkit.store import Store


@pytest.fixture
def store(corpus_store: Callable[[str], Store]) -> Store:
    return corpus_store("words")


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], Path]:
    """A file with this text."""

    def write(text: str) -> Path:
        path = tmp_path / "sweep.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


Write = Callable[[str], Path]


def test_options_are_choices_and_lists_of_what_may_be_given_several_times_are_swept(written: Write) -> None:
    file = read_sweep(written("fusion: [last, linear]\nlr: 2e-3\nshots: [8, 16]\nhead: crf\nseeds: 5\n"))
    assert file.blocks == (
        {"fusions": ("last", "linear"), "lrs": (0.002,), "shots": (8, 16), "head": "crf", "seeds": 5},
    )
    assert (file.stores, file.evaluate_on) == ((), ())


def test_a_list_under_any_other_option_makes_a_block_of_each_combination(written: Write) -> None:
    file = read_sweep(written("fusion: last\nhead: [tagger, crf]\ndropout: [0, 0.1, 0.2]\n"))
    product = itertools.product(("tagger", "crf"), (0.0, 0.1, 0.2))
    assert [(block["head"], block["dropout"]) for block in file.blocks] == list(product)
    assert all(block["fusions"] == ("last",) for block in file.blocks)


def test_blocks_have_what_stands_above_them_but_for_their_own(written: Write) -> None:
    text = "seeds: 3\nlr: 1e-3\nruns:\n  - fusion: last\n  - fusion: linear\n    lr: 5e-4\n    data-seeds: 2\n"
    assert read_sweep(written(text)).blocks == (
        {"seeds": 3, "lrs": (0.001,), "fusions": ("last",)},
        {"lrs": (0.0005,), "fusions": ("linear",), "data_seeds": 2},
    )


def test_values_are_read_as_the_command_line_reads_them(written: Write) -> None:
    """YAML 1.1 would make a word, a number of minutes and False of these."""
    [block] = read_sweep(written("lr: 1e-3\nfusion-layers: ['2:5', 3]\nlabel: no\nepochs: 010\n")).blocks
    assert block == {"lrs": (0.001,), "fusion_layers": ("2:5", "3"), "label": "no", "epochs": (10,)}


def test_places_are_relative_to_the_file(written: Write, tmp_path: Path) -> None:
    text = "store: [a.store, /b.store:5%, 's3://bucket/c.store']\nevaluate-on: ../d.store\ndraw-from: ids.json\n"
    file = read_sweep(written(text))
    assert file.stores == (f"{tmp_path}/a.store", "/b.store:5%", "s3://bucket/c.store")
    assert file.evaluate_on == (f"{tmp_path}/../d.store",)
    assert file.blocks == ({"draw_from": f"{tmp_path}/ids.json"},)


def test_a_file_and_flags_make_the_same_runs(store: Store, written: Write) -> None:
    text = """
        label: tags
        head: crf
        batch-size: 16
        validate-on: 2
        runs:
          - {fusion: [last, linear], lr: [1e-3, 1e-2], shots: [1, 2], draw: nested}
          - {fusion: "extra-layers:1", seeds: 2, patience: 3, class-weights: none}
    """
    shared: dict[str, Any] = {"label": "tags", "head": "crf", "batch_sizes": (16,), "validate_on": 2}
    wanted = [
        *expand(store, fusions=("last", "linear"), lrs=(1e-3, 1e-2), shots=(1, 2), draw="nested", **shared),
        *expand(store, fusions=("extra-layers:1",), seeds=2, patience=3, **shared),
    ]
    sweep = expand_blocks(store, read_sweep(written(text)).blocks)
    assert sweep.specs == wanted
    assert len(wanted) == 2 * 2 * 2 + 2


def test_a_run_of_two_blocks_is_one_run(store: Store, written: Write) -> None:
    text = "label: tags\nruns: [{fusion: [last, linear]}, {fusion: [linear, concat]}]\n"
    assert [s.fusion for s in expand_blocks(store, read_sweep(written(text)).blocks).specs] == [
        "last", "linear", "concat"
    ]  # fmt: skip


def test_every_option_can_stand_in_a_file(store: Store, written: Write, tmp_path: Path, watch: Any) -> None:
    """A value for each: the block it makes is one that ``expand`` takes."""
    before = expand(store, label="tags", fusions=("linear",), epochs=(1,), shots=(1,))
    fit(store, before, RunsFolder(tmp_path / "runs"), watch)
    values = {
        "task": "tagging", "label": "tags", "fusion": "linear", "fusion-layers": "'0,1,2,3,4,5,6'", "head": "tagger",
        "shots": "1", "draw": "uniform", "seeds": "1", "lr": "1e-3", "epochs": "1", "batch-size": "2",
        "optimizer": "adam", "schedule": "cosine", "warmup": "0.1", "weight-decay": "0.1", "clip-norm": "1",
        "dropout": "0.1", "label-smoothing": "0.1", "class-weights": "balanced", "patience": "1", "validate-on": "2",
        "validate-every": "3", "compute-dtype": "bfloat16", "max-steps": "[3, 5]",
        "order": "window",
        "joint-fusion": "shared", "init-from": "runs", "init-part": "fusion", "freeze": "fusion", "halving": "yes",
        "floor": "none",
    }  # fmt: skip
    lines = [f"{name}: {value}" for name, value in values.items()]
    sweep = expand_blocks(store, read_sweep(written("\n".join(lines))).blocks)
    spec, longer = sweep.specs
    assert (spec.max_steps, longer.max_steps, sweep.halving) == (3, 5, True)
    assert (spec.freeze, spec.optimizer, spec.validate_on, spec.order) == ("fusion", "adam", 2, "window")
    assert (spec.validate_every, spec.compute_dtype) == (3, "bfloat16")
    assert spec.init_from == before[0].digest
    assert [start.spec.digest for start in sweep.starts] == [before[0].digest]
    others = "label: tags\nfusion: last\ndata-seeds: 1\ninit-seeds: 2\ndraw-from: runs\n"
    given = expand_blocks(store, read_sweep(written(others)).blocks)
    assert [(s.draw, s.draw_ids, s.shots) for s in given.specs] == [("ids", given.draws[0].digest, 1)] * 2
    through = {
        "method": "[frozen, 'top:2']", "encoder-lr": "[grid, 1e-5]", "layer-decay": "0.9", "encoder-dropout": "0",
        "accumulate": "2", "checkpointing": "yes", "from-layer": "none",
    }  # fmt: skip
    (block,) = read_sweep(written("\n".join(f"{name}: {value}" for name, value in through.items()))).blocks
    assert block == {
        "methods": ("frozen", "top:2"), "encoder_lrs": ("grid", "1e-5"), "layer_decay": 0.9, "encoder_dropout": 0.0,
        "accumulate": 2, "checkpointing": True, "from_layer": "none",
    }  # fmt: skip
    probing = expand_blocks(store, read_sweep(written("label: tags\nfusion: last\ncontrol: yes\nmdl: yes\n")).blocks)
    assert [(s.control, s.mdl) for s in probing.specs] == [
        (False, None),
        (True, None),
        *((False, k) for k in range(1, 11)),
    ]
    of_tasks = {"sampling": "[uniform, annealed]", "steps-per-epoch": "9", "choose-epoch": "each"}
    tasks = "tasks: [{name: a, store: x.store, label: tags, batch-size: 4}, {name: b, store: s3://bucket/y}]\n"
    several = read_sweep(written(tasks + "\n".join(f"{name}: {value}" for name, value in of_tasks.items())))
    assert several.blocks == ({"sampling": ("uniform", "annealed"), "steps_per_epoch": 9, "choose_epoch": "each"},)
    beside = str(tmp_path / "x.store")
    assert several.tasks == (
        {"name": "a", "store": beside, "label": "tags", "batch_size": 4}, {"name": "b", "store": "s3://bucket/y"},
    )  # fmt: skip
    (budget,) = read_sweep(written("method: [pals, low-rank]\nbudget-per-task: 2000\n")).blocks
    assert budget == {"methods": ("pals", "low-rank"), "budget_per_task": 2000}
    once = {"budget-per-task", "data-seeds", "init-seeds", "draw-from", "pool", "control", "mdl"}
    assert {*values, *through, *of_tasks, *once} == set(FIT)
    pooled = read_sweep(written("label: label\npool: max\nfusion: last\nfloor: none\n")).blocks
    assert [s.pool for s in expand_blocks(store, pooled).specs] == ["max"]


# Files, each with where the message points, what it says and what it received.
MISTAKES: list[tuple[str, str, str]] = [
    ("fusoin: last", ", line 1: unknown key 'fusoin'", "did you mean 'fusion'?"),
    ("batch_size: 8", ", line 1: unknown key 'batch_size'", "did you mean 'batch-size'?"),
    ("runs: [{fusion: last}, {leran: 1}]", ", line 1: unknown key 'leran'", "one of accumulate"),
    ("run: [{fusion: last}]", ", line 1: unknown key 'run'", "did you mean 'runs'?"),
    ("runs: [{runs: [{fusion: last}]}]", ", line 1: unknown key 'runs'", "one of accumulate"),
    ("runs: [{store: a.store}]", ", line 1: 'store' is one for all runs", "above 'runs'"),
    ("out: runs", ", line 1: 'out' says where or how a sweep is run", "give --out on the command line"),
    ("runs: []", ", line 1: 'runs' is a list of blocks", "an empty list"),
    ("runs: {fusion: last}", ", line 1: 'runs' is a list of blocks", "a block of 1"),
    ("runs: [last]", ", line 1: 'runs' is a list of blocks", "a list of 1"),
    ("lr: fast", ", line 1: 'lr' has a value of another kind", "'fast'"),
    ("epochs: 2.5", ", line 1: 'epochs' has a value of another kind", "a whole number"),
    ("epochs: [1, two]", ", line 1: 'epochs' has a value of another kind", "'two'"),
    ("lr:", ", line 1: 'lr' has a value of another kind", "nothing"),
    ("lr: []", ", line 1: 'lr' has a value of another kind", "an empty list"),
    ("seeds: [0, 1]", ", line 1: 'seeds' has a value of another kind", "one value"),
    ("fusion: {last: 1}", ", line 1: 'fusion' has a value of another kind", "a block of 1"),
    ("fusion: [[last]]", ", line 1: 'fusion' has a value of another kind", "a list of 1"),
    ("lr: 1\nlr: 2", ", line 2: 'lr' is given twice in one block", "make it one, or one list"),
    ("runs: [{lr: 1, lr: 2}]", ", line 1: 'lr' is given twice in one block", "make it one, or one list"),
    ("fusion: last: linear", " is no sweep that can be read", "line 1"),
    ("fusion-layers: -4:", " is no sweep that can be read", "quote values"),
    ("fusion: [last", " is no sweep that can be read", "line 1"),
    ("- fusion: last", " holds no sweep", "a list of 1"),
    ("", " holds no sweep", "nothing"),
    ("last", " holds no sweep", "'last'"),
    ("fusion: &a [*a]", ", line 1: blocks are nested too deeply", "at most 8"),
    (
        "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n"
        + "".join(f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n" for old, new in pairwise("abcdef")),
        ", line ",
        "more than 100,000",
    ),
    ("lr: !!python/object/apply:os.system ['echo']", ", line 1: 'lr' has a value of another kind", "'echo'"),
]


@pytest.mark.parametrize(("text", "where", "says"), MISTAKES)
def test_a_mistake_is_one_message_that_points_at_it(text: str, where: str, says: str, written: Write) -> None:
    path = written(text)
    with pytest.raises(UsageError) as caught:
        read_sweep(path)
    assert caught.value.what.startswith(f"{path}{where}")
    assert says in str(caught.value)
    assert caught.value.remedy


def test_a_file_that_is_not_there_or_no_text_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(UsageError, match="is no sweep that can be read") as caught:
            read_sweep(path)
        assert caught.value.remedy == "check the path"
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="is no sweep that can be read"):
        read_sweep(tmp_path / "bytes.yaml")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("fusion: atention", "unknown fusion 'atention'"),
        ("schedule: liner", "unknown schedule 'liner'"),
        ("freeze: [fusion, haed]", "unknown freeze 'haed'"),
        ("seeds: 2\ndata-seeds: 2", "--seeds counts trials that differ in both seeds"),
        ("seeds: 0", "seeds is out of range"),
        ("draw: nested\nshots: 1\ndraw-from: nowhere", "{folder}/nowhere holds no finished run"),
        ("draw: ids\nshots: 1", "unknown draw 'ids'"),
        ("lr: nan", "lr is out of range"),
        ("validate-on: most", "--validate-on takes a number of validation examples, or a share of them"),
    ],
)
def test_a_wrong_choice_in_a_file_is_refused_as_behind_a_flag(
    text: str, what: str, store: Store, written: Write, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        expand_blocks(store, read_sweep(written(f"label: tags\n{text}\n")).blocks)
    assert caught.value.what.endswith(what.format(folder=tmp_path))


def test_what_is_laid_over_goes_first_and_takes_the_place_of_its_rivals() -> None:
    below = {"seeds": 5, "lrs": (1.0,), "draw": "nested"}
    assert overlaid(below, {}) == below
    assert overlaid(below, {"lrs": (2.0,)}) == {**below, "lrs": (2.0,)}
    assert overlaid(below, {"init_seeds": 2}) == {"lrs": (1.0,), "draw": "nested", "init_seeds": 2}
    assert overlaid({"data_seeds": 2, "init_seeds": 3}, {"seeds": 4}) == {"seeds": 4}
    assert overlaid({"data_seeds": 2}, {"init_seeds": 3}) == {"data_seeds": 2, "init_seeds": 3}
    assert overlaid(below, {"draw_from": "runs"}) == {"seeds": 5, "lrs": (1.0,), "draw_from": "runs"}
    assert overlaid({"max_steps": (9,)}, {"epochs": (2,)}) == {"epochs": (2,)}  # max_steps would win in a run


def test_a_file_of_shared_options_alone_is_one_block(written: Write) -> None:
    assert read_sweep(written("store: a.store\n")) == SweepFile((f"{written('').parent}/a.store",), (), ({},))
