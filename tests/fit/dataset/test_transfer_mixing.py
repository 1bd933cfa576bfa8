"""Several stores under one task: which examples are trained on, which judge, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fusionkit.dataset.mixture import Mix, mix_of
from fusionkit.dataset.share import Share, parse_share
from fusionkit.encode import encode
from fusionkit.encoder import Encoder
from fusionkit.errors import DataError, UsageError
from fusionkit.fit import RunsFolder, expand, fit
from fusionkit.sources import guess_columns, open_source
from fusionkit.specs import EncodeSpec, RunSpec
from fusionkit.store import Store, open_store

MakeStore = Callable[..., Store]


def row(words: str, tags: str, label: str | None, **more: str) -> dict[str, Any]:
    return {"tokens": words.split(), "tags": tags.split(), "label": label, **more}


GERMAN = {
    "train": [
        row("Regen in Bonn", "O O B-place", "weather"),
        row("Eva backt", "B-who O", "food"),
        row("das Derby in Ulm", "O O O B-team", "sport"),
        row("Nebel", "O", "weather"),
        row("Suppe", "O", None),
        row("Max kocht", "B-who O", "food"),
    ],
    "validation": [row("Eis in Bonn", "O O B-place", "weather"), row("Brot", "O", "food")],
    "test": [row("Tor in Ulm", "O O B-team", "sport"), row("Wind", "O", "weather"), row("Kuchen", "O", "politics")],
}


@pytest.fixture(scope="module")
def english(corpus_store: Callable[[str], Store]) -> Store:
    """Train has the labels food and weather, eight examples, seven of them labelled."""
    return corpus_store("words")


@pytest.fixture(scope="module")
def german(make_store: MakeStore) -> Store:
    """Train has the labels food, sport and weather, six examples, five of them labelled."""
    return make_store("words", "german", **GERMAN)


def spec_of(mix: Store | Mix, **choices: Any) -> RunSpec:
    chosen: dict[str, Any] = {"task": "classification", "fusions": ("linear",), "epochs": (2,), **choices}
    return expand(mix, **chosen)[0]


def test_examples_of_both_are_trained_on_and_classes_are_those_of_either(english: Store, german: Store) -> None:
    mix = Mix([Share(english), Share(german)])
    data = mix.load(spec_of(mix))
    assert data.labels == ["food", "sport", "weather"]
    ours = ["weather", "food", "weather", "food", "weather", "weather", "food"]
    assert data.train.gold == [*ours, "weather", "food", "sport", "weather", "food"]
    assert [data.labels[k] for k in data.train.targets] == data.train.gold
    assert data.train.ids[-5:] == [f"german/train-{i}" for i in (0, 1, 2, 3, 5)]
    assert (data.validation.gold, [data.labels[k] for k in data.validation.targets]) == ((["weather", "food"]),) * 2
    assert data.test is not None
    assert data.test.targets.tolist() == [1, 2, -1]
    assert not data.tests


def test_a_rows_states_are_those_of_its_own_store(english: Store, german: Store) -> None:
    mix = Mix([Share(german), Share(english)])
    data = mix.load(spec_of(mix, task="tagging"))
    batch = data.train.batch(
        np.array([1, 6]), (0, 6)
    )  # "Eva backt", "rain in Oslo" is the seventh, "Anna …" the eighth
    wanted = [german["train"].take([1]).hidden_states, english["train"].take([0]).hidden_states]
    found = [batch.states[a:b] for a, b in pairwise(batch.offsets.tolist())]
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.tolist() == theirs[:, [0, 6]].float().tolist()
    assert [data.labels[k] for k in batch.targets] == ["B-who", "O", "O", "O", "B-place"]
    assert data.classes == 3  # kinds of entities: place, team and who
    assert data.default == "O"


def test_a_share_is_the_same_alone_and_beside_another_store(english: Store, german: Store) -> None:
    alone, beside = Mix([Share(german, "2")]), Mix([Share(english), Share(german, "2")])
    draws = set()
    for seed in range(6):
        spec = spec_of(beside, seeds=6)
        ids = [mix.load(RunSpec(**{**spec.to_dict(), "data_seed": seed})).train.ids for mix in (alone, beside)]
        assert len(ids[0]) == 2
        assert ids[1][7:] == ids[0]
        draws.add(tuple(ids[0]))
    assert len(draws) > 1


@pytest.mark.parametrize(("part", "count"), [("50%", 2), ("1%", 1), ("60%", 3), ("5", 5), (None, 5)])
def test_a_share_is_of_the_labelled_examples(german: Store, part: str | None, count: int) -> None:
    mix = Mix([Share(german, part)])
    assert len(mix.load(spec_of(mix)).train) == count


@pytest.mark.parametrize(
    ("text", "part"), [("5%", "5%"), ("5.0%", "5%"), (".5%", "0.5%"), ("200", "200"), ("0200", "200"), ("100%", None)]
)
def test_a_share_has_one_spelling(text: str, part: str | None) -> None:
    assert parse_share(text) == part


@pytest.mark.parametrize("text", ["0%", "101%", "0", "1.5", "five", "", "%", "-5%", "5 %", "nan%", "1e2%"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no share of a store"):
        parse_share(text)


def test_a_share_larger_than_its_store_is_refused_before_any_run(
    english: Store, german: Store, tmp_path: Any, watch: Any
) -> None:
    mix = Mix([Share(english), Share(german, "6")])
    with pytest.raises(UsageError, match="fewer training examples than the share") as caught:
        fit(mix, [spec_of(mix)], RunsFolder(tmp_path / "runs"), watch)
    assert caught.value.expected == "at most 5"
    assert not (tmp_path / "runs").exists()


def test_one_whole_store_judged_by_itself_is_that_store(english: Store, german: Store) -> None:
    assert mix_of([Share(english)]) is english
    assert mix_of([Share(english)], [english]) is english
    assert isinstance(mix_of([Share(english, "5%")]), Mix)
    assert isinstance(mix_of([Share(english)], [german]), Mix)


def test_a_spec_names_stores_shares_and_judges_once(english: Store, german: Store) -> None:
    e, g = english.digest, german.digest
    for parts, judges, wanted in [
        ([Share(english), Share(german, "5%")], [], (e, f"{e},{g}:5%", None)),
        ([Share(english), Share(german, "5%")], [german, german], (e, f"{e},{g}:5%", None)),
        ([Share(english)], [german], (e, None, g)),
        ([Share(german), Share(english)], [german, english], (g, f"{g},{e}", f"{g},{e}")),
    ]:
        spec = spec_of(Mix(parts, judges))
        assert (spec.store, spec.mix, spec.evaluate_on) == wanted
    plain = spec_of(english)
    assert (plain.mix, plain.evaluate_on, plain.init_from, plain.freeze) == (None,) * 4


def test_several_judges_are_scored_each_and_the_first_chooses(
    english: Store, german: Store, tmp_path: Any, watch: Any
) -> None:
    runs = RunsFolder(tmp_path)
    together = Mix([Share(english), Share(german, "60%")], [english, german])
    record = fit(together, [spec_of(together)], runs, watch)[0]
    assert list(record["tests"]) == ["corpus", "german"]
    assert record["scores"]["test"] == record["tests"]["corpus"]
    for name, judge in (("corpus", english), ("german", german)):
        alone = Mix([Share(english), Share(german, "60%")], [english, judge] if judge is german else [judge])
        other = fit(alone, [spec_of(alone)], runs, watch)[0]
        assert other["curve"] == record["curve"]
        assert (other["tests"] or {name: other["scores"]["test"]})[name] == record["tests"][name]
    rows = runs.frame(each_test=True)
    assert [(r.evaluated, r.score) for r in rows[:2].itertuples()] == [
        (name, record["tests"][name]["accuracy"]) for name in ("corpus", "german")
    ]
    assert "validation of corpus chooses the epoch, test of corpus, german is scored" in watch.said


def test_a_record_tells_what_was_drawn_of_each_store(english: Store, german: Store, tmp_path: Any, watch: Any) -> None:
    mix = Mix([Share(english), Share(german, "2")])
    record = fit(mix, [spec_of(mix)], RunsFolder(tmp_path), watch)[0]
    whole, drawn = record["parts"]
    assert whole == {"data": "corpus", "store": english.digest, "share": "all", "examples": 7, "draw": None}
    assert (drawn["data"], drawn["share"], drawn["examples"], len(drawn["draw"])) == ("german", "2", 2, 2)
    assert set(drawn["draw"]) < {f"train-{i}" for i in (0, 1, 2, 3, 5)}  # the fifth has no label
    assert (record["data"], record["evaluated"]) == ("corpus + german:2", "german")
    assert "train: 7 examples of corpus, 2 examples of german" in watch.said
    assert any(line.startswith("validation of german") and "the last store named" in line for line in watch.said)


def test_a_store_to_evaluate_on_needs_no_train_split(english: Store, make_store: MakeStore) -> None:
    judge = make_store("words", "judge", validation=GERMAN["validation"], test=GERMAN["test"])
    mix = Mix([Share(english)], [judge])
    data = mix.load(spec_of(mix))
    assert data.labels == ["food", "weather"]
    assert data.test is not None
    assert data.test.targets.tolist() == [-1, 1, -1]
    assert any("with a label that train lacks (politics, sport)" in note for note in data.notes)
    with pytest.raises(UsageError, match="has no train split"):
        Mix([Share(english), Share(judge)])
    blind = make_store("words", "blind", test=GERMAN["test"])
    with pytest.raises(UsageError, match="nothing to choose the best epoch by"):
        Mix([Share(english)], [blind]).load(spec_of(Mix([Share(english)], [blind])))
    scored = Mix([Share(english)], [english, blind])
    assert list(scored.load(spec_of(scored)).tests) == ["corpus", "blind"]


def test_a_judge_without_validation_gives_up_a_share_of_its_own_train(english: Store, make_store: MakeStore) -> None:
    short = make_store("words", "short", train=GERMAN["train"], test=GERMAN["test"])
    mix = Mix([Share(english), Share(short)])
    data = mix.load(spec_of(mix))
    assert (len(data.validation), len(data.train)) == (1, 7 + 4)
    assert not {f"short/{i}" for i in data.validation.ids} & set(data.train.ids)


def test_a_fusion_of_whole_examples_gets_them_from_both(
    corpus_store: Callable[[str], Store], make_store: MakeStore
) -> None:
    stores = corpus_store("tokens"), make_store("tokens", "german", **GERMAN)
    mix = Mix([Share(store) for store in stores])
    spec = spec_of(mix, task="tagging", fusions=("extra-layers:1",))
    joined, alone = mix.load(spec).train, [Mix([Share(store)], stores[1:]).load(spec).train for store in stores]
    assert joined.read is not None
    assert joined.read.tolist() == [bit for part in alone if part.read is not None for bit in part.read.tolist()]
    batch = joined.batch(np.array([1, 10]), (6,))
    wanted = [
        store["train"].take([example]).hidden_states[:, [6]] for store, example in zip(stores, (1, 2), strict=True)
    ]
    assert batch.states.tolist() == [row for part in wanted for row in part.float().tolist()]


def test_numbers_of_both_stores_are_learned(make_store: MakeStore, tmp_path: Any, watch: Any) -> None:
    examples = [row(f"number {i}", "O O", None) | {"stars": i + 0.5} for i in range(9)]
    one = make_store("mean", "one", train=examples[:3], validation=examples[3:5], test=examples[5:])
    two = make_store("mean", "two", train=examples[4:], validation=examples[:3], test=examples[2:6])
    mix = Mix([Share(one), Share(two, "60%")])
    spec = spec_of(mix, task="regression", label="stars", fusions=("last",))
    data = mix.load(spec)
    assert (data.labels, len(data.train)) == ([], 6)
    assert data.train.targets[:3].tolist() == [0.5, 1.5, 2.5]
    assert set(data.train.targets[3:].tolist()) < {4.5, 5.5, 6.5, 7.5, 8.5}
    assert fit(mix, [spec], RunsFolder(tmp_path), watch)[0]["status"] == "finished"


def test_stores_that_one_head_cannot_read_are_refused_side_by_side(
    english: Store, corpus_store: Callable[[str], Store]
) -> None:
    tokens = corpus_store("tokens")
    with pytest.raises(UsageError, match="one head cannot read these stores") as caught:
        Mix([Share(english), Share(tokens)])
    _, heads, field, _ = str(caught.value).splitlines()
    assert heads.split() == [str(english.path), str(tokens.path)]
    assert field.split() == ["rows", "words", "tokens"]


def test_a_store_named_twice_is_refused(english: Store) -> None:
    with pytest.raises(UsageError, match="named twice"):
        Mix([Share(english), Share(english, "5%")])


def test_a_column_that_one_store_lacks_is_refused_with_those_there_are(english: Store, make_store: MakeStore) -> None:
    renamed = [{"tokens": r["tokens"], "marks": r["tags"], "label": r["label"]} for r in GERMAN["train"]]
    other = make_store("words", "renamed", train=renamed)
    with pytest.raises(UsageError, match="has no column 'tags'") as caught:
        spec_of(Mix([Share(english), Share(other)]), task="tagging")
    assert f"{other.path}: id, tokens, marks, label" in str(caught.value.received)


@pytest.mark.parametrize("task", ["classification", "tagging"])
def test_labels_that_no_other_store_has_are_refused_with_both_sets(
    english: Store, make_store: MakeStore, task: str
) -> None:
    upper = [
        {**r, "label": (r["label"] or "?").upper(), "tags": [tag.upper() for tag in r["tags"]]} for r in GERMAN["train"]
    ]
    other = make_store("words", "upper", train=upper)
    mix = Mix([Share(english), Share(other)])
    with pytest.raises(UsageError, match="occurs in another store") as caught:
        mix.load(spec_of(mix, task=task))
    names = ("food, weather", "?, FOOD, SPORT, WEATHER")
    if task == "tagging":  # "O" is in both, and no label
        names = ("B-place, B-who, I-place, I-who", "B-PLACE, B-TEAM, B-WHO")
    assert caught.value.received == f"{english.path}: {names[0]}; {other.path}: {names[1]}"


def test_a_store_without_any_label_is_refused(english: Store, make_store: MakeStore) -> None:
    bare = make_store("words", "bare", train=[{**r, "label": None} for r in GERMAN["train"]], test=GERMAN["test"])
    mix = Mix([Share(english), Share(bare)], [english])
    with pytest.raises(DataError, match=r"no example of .* has a label"):
        mix.load(spec_of(mix))


def test_stores_of_other_layers_meet_in_the_layers_that_both_have(
    english: Store, minilm: Encoder, tmp_path: Path
) -> None:
    """Layers 1, 3 and 6 lie at 1, 3 and 6 of one store, at 0, 1 and 2 of the other: in train, and where it judges."""
    folder = tmp_path / "few"
    folder.mkdir()
    for split, rows in GERMAN.items():
        (folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    source = open_source(str(folder))
    spec = EncodeSpec(rows="words", layers="1,3,6", max_length=9)
    encode(source, guess_columns(source), tmp_path / "store", spec, minilm)
    few = open_store(tmp_path / "store")
    places = {english.digest: [1, 6], few.digest: [0, 2]}
    for trained, judge in (([english, few], few), ([few, english], english), ([few], english), ([english], few)):
        mix = Mix([Share(store) for store in trained], [judge])
        assert mix.layers == (1, 3, 6)
        data = mix.load(spec_of(mix, task="tagging"))
        for part, store, name in ((data.train, trained[0], "train"), (data.validation, judge, "validation")):
            found = part.batch(np.array([0]), (0, 2)).states
            wanted = store[name].take([0]).hidden_states[:, places[store.digest]].float()
            assert torch.equal(found, wanted), (name, store.path)
