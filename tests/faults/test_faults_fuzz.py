"""Manifests, plans and parts' records changed at random: a FusionkitError or the right numbers, nothing between."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fusionkit.cli.info import store_summary
from fusionkit.encode.repair import damaged_parts, repair
from fusionkit.encoder import Encoder
from fusionkit.errors import FusionkitError
from fusionkit.store import open_store, verify_store

Encoding = Callable[..., Any]
LEAVES = (
    st.none() | st.booleans() | st.integers(-2, 70) | st.sampled_from([1 << 31, 1 << 70, -(1 << 70)])
    | st.floats() | st.text(max_size=6) | st.sampled_from(["\ud800", "../x", "tokens", "bfloat16", "float32"])
)  # fmt: skip
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner))
STEPS = st.lists(st.integers(0, 1 << 16), max_size=6)
# Where to go from the top, what to do there, and with what.
CHANGE = st.tuples(STEPS, st.sampled_from(["drop", "replace", "retype", "add", "swap"]), VALUES)
CHANGES = st.lists(CHANGE, min_size=1, max_size=3)
BYTES = st.tuples(st.sampled_from(["cut", "flip", "insert", "other"]), st.integers(0, 1 << 16), st.binary(max_size=9))
EXAMPLES = settings().max_examples  # few in the gate, many in the soak: tests/conftest.py
SETTINGS = settings(
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip


def changed(document: Any, changes: list[tuple[list[int], str, Any]]) -> bytes:
    """A JSON document with some of its fields, at any depth, dropped, replaced, of another type or exchanged."""
    document = copy.deepcopy(document)
    for steps, action, value in changes:
        at, inner = document, document
        for step in steps:
            if isinstance(inner, dict | list) and inner:
                at = inner
                key = _key(at, step)
                inner = at[key]
        if not at:
            continue
        key = _key(at, (steps or [0])[-1])
        if action == "drop":
            del at[key]
        elif action == "replace":
            at[key] = value
        elif action == "retype":
            at[key] = str(at[key]) if isinstance(at[key], int) else [at[key]]
        elif action == "add" and isinstance(at, dict):
            at[str(value)] = value
        else:
            other = _key(at, len(steps) + 1)
            at[key], at[other] = at[other], at[key]
    return json.dumps(document).encode()


def _key(at: dict[str, Any] | list[Any], step: int) -> Any:
    return list(at)[step % len(at)] if isinstance(at, dict) else step % len(at)


def scrambled(raw: bytes, how: tuple[str, int, bytes]) -> bytes:
    """Bytes cut off, with one bit flipped, with others among them, or others altogether."""
    action, number, others = how
    at = number % len(raw)
    return {
        "cut": raw[:at],
        "flip": raw[:at] + bytes([raw[at] ^ 1 << number % 8]) + raw[at + 1 :],
        "insert": raw[:at] + others + raw[at:],
        "other": others,
    }[action]


def numbers(path: Path) -> dict[str, Any]:
    """Every value that a store gives to read."""
    store = open_store(path)
    found: dict[str, Any] = {"": (set(store.splits), store.rows, store.layers, store.hidden)}
    for name in store.splits:
        split = store[name]
        found |= {
            f"{name} {field}": getattr(split, field)
            for field in ("row_offsets", "row_mask", "token_offsets", "word_index")
        }
        found[f"{name} hidden_states"] = split.hidden_states[:]
        found[f"{name} tensor"] = split.take([1, 0]).hidden_states.float().numpy()
        found[f"{name} examples"] = json.loads(split.examples.to_json())
    return found


@pytest.fixture(scope="session")
def spoilt(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A copy of the whole store in which one file holds these bytes; optionally turned back to an unfinished one."""
    folder = tmp_path_factory.mktemp("fuzz")

    def make(name: str, content: bytes, unfinished: bool = False) -> Path:
        shutil.rmtree(folder)
        folder.mkdir()
        out = Path(shutil.copytree(whole, folder / "s"))
        if unfinished:
            (out / "manifest.json").unlink()
            (out / "plan.json").write_bytes(plan_of(whole))
            (out / "parts" / "validation-00000.json").unlink()
        (out / name).write_bytes(content)
        return out

    return make


def plan_of(whole: Path) -> bytes:
    """The plan that the finished store was made from."""
    manifest = json.loads((whole / "manifest.json").read_bytes())
    del manifest["provenance"]
    for fields in manifest["splits"].values():
        del fields["chunks"]
    return json.dumps(manifest).encode()


@pytest.fixture(scope="session")
def right(whole: Path) -> dict[str, Any]:
    return numbers(whole)


def assert_right(found: dict[str, Any], right: dict[str, Any], close: float = 0.0) -> None:
    assert found.keys() == right.keys()
    for name, value in right.items():
        if isinstance(value, np.ndarray):
            assert found[name].dtype == value.dtype
            np.testing.assert_allclose(found[name], value, rtol=close, atol=close)
        else:
            assert found[name] == value


def tried(act: Callable[[], Any]) -> Any:
    """What an action gives, or the FusionkitError that it raises."""
    try:
        return act()
    except FusionkitError as error:
        return error


def check_manifest(out: Path, right: dict[str, Any], encoded: Encoding, encoder: Encoder) -> None:
    """Reading, ``info``, ``verify``, ``verify --repair`` and a second encode."""
    read = tried(lambda: numbers(out))
    if isinstance(read, dict):
        assert_right(read, right)
        json.dumps(store_summary(open_store(out)))
    report = tried(lambda: encoded(out))
    assert isinstance(report, FusionkitError) or report.outcome == "complete"
    checked = tried(lambda: list(verify_store(out)))
    if isinstance(checked, FusionkitError):
        assert isinstance(read, FusionkitError)
        return
    if faults := {each.path: each.fault for each in checked if each.fault is not None}:
        repaired = tried(lambda: repair(out, damaged_parts(out, faults), encoder))
        if isinstance(repaired, FusionkitError):
            return
    assert_right(numbers(out), right)


@SETTINGS
@given(changes=CHANGES)
@example(changes=[([], "drop", None)])
def test_a_manifest_with_other_fields_gives_right_numbers_or_an_error(
    whole: Path, spoilt: Callable[..., Path], right: dict[str, Any], encoded: Encoding, encoder: Encoder,
    changes: list[tuple[list[int], str, Any]],
) -> None:  # fmt: skip
    content = changed(json.loads((whole / "manifest.json").read_bytes()), changes)
    check_manifest(spoilt("manifest.json", content), right, encoded, encoder)


@SETTINGS
@given(how=BYTES)
def test_a_manifest_of_other_bytes_gives_right_numbers_or_an_error(
    whole: Path, spoilt: Callable[..., Path], right: dict[str, Any], encoded: Encoding, encoder: Encoder,
    how: tuple[str, int, bytes],
) -> None:  # fmt: skip
    content = scrambled((whole / "manifest.json").read_bytes(), how)
    check_manifest(spoilt("manifest.json", content), right, encoded, encoder)


def check_resumed(out: Path, right: dict[str, Any], encoded: Encoding) -> None:
    """An encode that goes on with what lies there, and the finished store."""
    assert isinstance(tried(lambda: open_store(out)), FusionkitError)
    report = tried(lambda: encoded(out))
    if isinstance(report, FusionkitError):
        assert not (out / "manifest.json").exists()
        return
    # How many sub-tokens a batch may have sets how sums are rounded.
    usual = report.manifest["batch_tokens"] == 1024
    assert_right(numbers(out), right, close=0.0 if usual else 0.01)
    assert [each for each in verify_store(out) if each.fault is not None] == []


@settings(SETTINGS, max_examples=EXAMPLES // 2)
@given(changes=CHANGES)
def test_a_plan_with_other_fields_ends_in_the_right_store_or_an_error(
    whole: Path, spoilt: Callable[..., Path], right: dict[str, Any], encoded: Encoding,
    changes: list[tuple[list[int], str, Any]],
) -> None:  # fmt: skip
    content = changed(json.loads(plan_of(whole)), changes)
    check_resumed(spoilt("plan.json", content, unfinished=True), right, encoded)


@settings(SETTINGS, max_examples=EXAMPLES // 5)
@given(how=BYTES)
def test_a_plan_of_other_bytes_ends_in_the_right_store_or_an_error(
    whole: Path, spoilt: Callable[..., Path], right: dict[str, Any], encoded: Encoding, how: tuple[str, int, bytes]
) -> None:
    check_resumed(spoilt("plan.json", scrambled(plan_of(whole), how), unfinished=True), right, encoded)


@settings(SETTINGS, max_examples=EXAMPLES // 2)
@given(changes=CHANGES)
def test_a_record_with_other_fields_ends_in_the_right_store(
    whole: Path, spoilt: Callable[..., Path], right: dict[str, Any], encoded: Encoding,
    changes: list[tuple[list[int], str, Any]],
) -> None:  # fmt: skip
    content = changed(json.loads((whole / "parts" / "train-00002.json").read_bytes()), changes)
    out = spoilt("parts/train-00002.json", content, unfinished=True)
    check_resumed(out, right, encoded)
    assert (out / "manifest.json").exists(), "a record alone cannot stop an encode"


@settings(SETTINGS, max_examples=EXAMPLES // 5)
@given(how=BYTES)
def test_a_record_of_other_bytes_ends_in_the_right_store(
    whole: Path, spoilt: Callable[..., Path], right: dict[str, Any], encoded: Encoding, how: tuple[str, int, bytes]
) -> None:
    content = scrambled((whole / "parts" / "train-00002.json").read_bytes(), how)
    out = spoilt("parts/train-00002.json", content, unfinished=True)
    check_resumed(out, right, encoded)
    assert (out / "manifest.json").exists(), "a record alone cannot stop an encode"
