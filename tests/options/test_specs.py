"""Specs: validated, frozen, to a dict and back, with digests that mean the work; layer choices."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

import numpy as np
import pytest

from fusionkit.errors import UsageError
from fusionkit.options.entry import options_of
from fusionkit.specs import EncodeSpec, RunSpec, canonical_json, digest_of, parse_layers

RUN = RunSpec(store="0123456789abcdef", task="tagging", label="slots", fusion="attention", head="crf")

# Another valid value for each field of a run.
OTHER: dict[str, Any] = {
    "store": "fedcba9876543210", "task": "classification", "label": "intent", "fusion": "layer:3", "head": "tagger",
    "pool": "mean", "shots": 8, "data_seed": 1, "init_seed": 1, "lr": 5e-4, "weight_decay": 0.01, "dropout": 0.1,
    "epochs": 3, "batch_size": 16, "schedule": "constant", "fusion_layers": "0,3",
    "optimizer": "adam", "warmup": 0.1, "clip_norm": 1.0, "label_smoothing": 0.1, "class_weights": "balanced",
    "patience": 2, "joint_fusion": "each", "task_stores": "0123456789abcdef,89abcdef01234567", "task_batches": "8,0",
    "sampling": "uniform", "steps_per_epoch": 9, "choose_epoch": "each", "mix": "0123456789abcdef,89abcdef01234567:5%",
    "evaluate_on": "89abcdef01234567", "init_from": "0123456789abcdef", "init_part": "fusion", "freeze": "head",
    "draw": "nested", "draw_ids": "0123456789abcdef", "validate_on": 800,  "order": "window",
    "validate_every": 5, "compute_dtype": "bfloat16", "max_steps": 100,
    "method": "full", "encoder_lr": 1e-4, "layer_decay": 0.9, "encoder_dropout": 0.2, "accumulate": 2,
    "checkpointing": True, "from_layer": 3, "control": True, "mdl": 3,
}  # fmt: skip

OUT_OF_RANGE: list[tuple[str, Any]] = [
    ("pool", "sum"), ("schedule", "cosin"), ("shots", 0), ("lr", 0.0), ("lr", -1e-3), ("lr", 100.0),
    ("lr", float("nan")), ("data_seed", -1), ("init_seed", 1 << 63),
    ("weight_decay", -0.1), ("dropout", 1.0), ("dropout", -0.1), ("epochs", 0), ("batch_size", 0),
    ("fusion_layers", "-4:"), ("optimizer", "sgd"), ("class_weights", "even"), ("warmup", -0.1), ("warmup", 1.0),
    ("clip_norm", 0.0), ("clip_norm", float("inf")), ("clip_norm", float("nan")), ("label_smoothing", -0.1),
    ("label_smoothing", 1.0), ("patience", 0), ("joint_fusion", "both"),
    ("sampling", "temperature:"), ("sampling", "greedy"), ("sampling", "temperature:1.2.3"),
    ("sampling", "temperature:0.0"), ("sampling", "temperature:."),
    ("steps_per_epoch", 0), ("choose_epoch", "last"), ("task_batches", "8,"), ("init_part", "all"), ("freeze", "none"),
    ("draw", "stratifeid"), ("draw", "ids"), ("draw_ids", "0123456789abcdef"), ("validate_on", 0), ("order", "sorted"),
    ("validate_every", 0), ("compute_dtype", "float16"), ("max_steps", 0),
    ("encoder_lr", 0.0), ("layer_decay", 0.0), ("encoder_dropout", 1.0), ("accumulate", 0),
    ("from_layer", 0),
    ("epochs", 10**400), ("lr", 10**400), ("draw_ids", True), ("fusion_layers", ["0", "3"]),
    ("epochs", True), ("mdl", 0), ("mdl", 11),
]  # fmt: skip


def test_a_run_goes_to_a_dict_and_back() -> None:
    plain = RUN.to_dict()
    assert plain["fusion"] == "attention"
    assert plain["shots"] is None
    assert RunSpec.from_dict(plain) == RUN
    assert RunSpec.from_dict(dict(reversed(plain.items()))).digest == RUN.digest


def test_each_field_of_a_run_changes_its_digest() -> None:
    given = {"draw_ids": {"draw": "ids"}}  # only of a draw that was given
    digests = {dataclasses.replace(RUN, **{name: value, **given.get(name, {})}).digest for name, value in OTHER.items()}
    assert set(OTHER) == {field.name for field in dataclasses.fields(RunSpec)}
    assert len(digests | {RUN.digest}) == len(OTHER) + 1


def test_a_digest_is_the_start_of_the_sha_256_of_sorted_compact_json() -> None:
    text = '{"a":[1,2.5,null],"ü":"é"}'
    assert canonical_json({"ü": "é", "a": [1, 2.5, None]}) == text
    assert digest_of({"ü": "é", "a": (1, 2.5, None)}) == hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]


def test_of_a_given_draw_the_ids_decide_the_digest() -> None:
    one, other = (dataclasses.replace(RUN, draw="ids", draw_ids=ids).digest for ids in ("0" * 16, "1" * 16))
    assert one != other


def test_a_run_keeps_its_name_on_disk_from_release_to_release() -> None:
    text = (
        '{"batch_size":32,"data_seed":0,"dropout":0.0,"epochs":10,"fusion":"attention","head":"crf","init_seed":0,'
        '"label":"slots","lr":0.002,"pool":null,"schedule":"linear","shots":null,"store":"0123456789abcdef","task":"tagging",'
        '"weight_decay":0.0}'
    )
    assert RUN.digest == hashlib.sha256(text.encode()).hexdigest()[:16]
    smoothed = text.replace('"label":"slots",', '"label":"slots","label_smoothing":0.1,')
    later = dataclasses.replace(RUN, label_smoothing=0.1)
    assert later.digest == hashlib.sha256(smoothed.encode()).hexdigest()[:16]


FLOATS, INTS = ([name for name, entry in options_of(RunSpec).items() if entry.kind is kind] for kind in (float, int))


def test_equal_numbers_are_one_run_however_they_are_given() -> None:
    kinds = {field.name: str(field.type).split(" ")[0] for field in dataclasses.fields(RunSpec)}
    marks = {name for name, kind in kinds.items() if kind == "bool"}
    assert kinds == {
        name: "float" if name in FLOATS else "int" if name in INTS else "str" for name in kinds
    } | dict.fromkeys(marks, "bool")
    whole = {"lr": 1, "clip_norm": 1, "encoder_lr": 1, "layer_decay": 1}  # the others may be 0
    pairs: list[tuple[str, Any, Any]] = [(name, float(whole.get(name, 0)), whole.get(name, 0)) for name in FLOATS]
    pairs += [(name, 0.0, -0.0) for name in FLOATS if name not in whole]
    pairs += [(name, 0.5, np.float32(0.5)) for name in FLOATS] + [(name, 0.1, np.float64(0.1)) for name in FLOATS]
    pairs += [(name, 3, kind(3)) for name in INTS for kind in (np.int64, np.uint8)]
    for name, plain, other in pairs:
        given: list[dict[str, Any]] = [{name: plain}, {name: other}]
        one, two = (dataclasses.replace(RUN, **values) for values in given)
        assert canonical_json(one.to_dict()) == canonical_json(two.to_dict())
        assert one.digest == two.digest
        assert type(getattr(two, name)) is type(plain)
    assert len(pairs) > 30


@pytest.mark.parametrize("name", [*FLOATS, *INTS])
def test_what_is_no_number_is_refused_by_name(name: str) -> None:
    for value in (True, "1", b"1", [1], *((1.0, np.float64(1.0)) if name in INTS else (10**400,))):
        with pytest.raises(UsageError, match=f"^{name.replace('_', '-')} has a wrong value") as caught:
            dataclasses.replace(RUN, **{name: value})
        assert caught.value.expected == ("a whole number" if name in INTS else "a number")


@pytest.mark.parametrize(("name", "value"), OUT_OF_RANGE)
def test_a_value_out_of_range_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(UsageError) as caught:
        dataclasses.replace(RUN, **{name: value})
    assert name.replace("_", "-") in str(caught.value).splitlines()[0]


@pytest.mark.parametrize("text", ["2", "2.", "2.5", ".5", "0.5", "00.10", "10"])
def test_a_temperature_is_a_number_above_0(text: str) -> None:
    assert dataclasses.replace(RUN, sampling=f"temperature:{text}").sampling == f"temperature:{text}"


def test_digits_without_end_are_refused_at_once() -> None:
    """Who sends records may write such a field; with a slow pattern it would take a minute."""
    with pytest.raises(UsageError, match="sampling"):
        dataclasses.replace(RUN, sampling=f"temperature:{'9' * 100_000}x")


def test_a_value_out_of_range_is_tried_of_every_option_that_has_a_range() -> None:
    ranged = {name for name, entry in options_of(RunSpec).items() if entry.bounds or entry.choices or entry.pattern}
    assert {name for name, _ in OUT_OF_RANGE} == ranged | {"draw_ids"}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"rows": "word"}, "did you mean 'words'?"),
        ({"dtype": "float61"}, "did you mean 'float16'?"),
        ({"compute_dtype": "int8"}, "unknown compute-dtype 'int8'"),
        ({"max_length": 2}, "max-length is out of range"),
        ({"max_length": -1}, "max-length is out of range"),
    ],
)
def test_an_encoding_that_makes_no_sense_is_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError) as caught:
        EncodeSpec(**changes)
    assert named in str(caught.value)


def test_specs_are_frozen() -> None:
    for spec, name in ((RUN, "lr"), (EncodeSpec(), "rows")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(spec, name, 1)


def test_remote_code_is_off_unless_asked_for() -> None:
    assert EncodeSpec().trust_remote_code is False


def test_an_unknown_field_of_a_run_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="unknown field of a run 'epoch'") as caught:
        RunSpec.from_dict(RUN.to_dict() | {"epoch": 3})
    assert caught.value.remedy == "did you mean 'epochs'?"


def test_a_missing_field_of_a_run_is_named() -> None:
    plain = RUN.to_dict()
    del plain["store"]
    with pytest.raises(UsageError, match="'store'"):
        RunSpec.from_dict(plain)


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("all", (0, 1, 2, 3, 4, 5, 6)),
        ("0,3,6", (0, 3, 6)),
        ("6, 0 ,3,3", (0, 3, 6)),
        ("-1", (6,)),
        ("-7,-1", (0, 6)),
        ("-4:", (3, 4, 5, 6)),
        ("2:5", (2, 3, 4)),
        (":-1", (0, 1, 2, 3, 4, 5)),
        (":", (0, 1, 2, 3, 4, 5, 6)),
        ("5:99", (5, 6)),
    ],
)
def test_layers_are_chosen_as_python_indexes(text: str, chosen: tuple[int, ...]) -> None:
    assert parse_layers(text, 7) == chosen


@pytest.mark.parametrize("text", ["", "7", "-8", "x", "1,,2", "1:2:3", "5:2", "9:", "1.5", "first"])
def test_layers_that_do_not_exist_are_refused_with_the_range(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_layers(text, 7)
    assert "within 0…6" in str(caught.value)
