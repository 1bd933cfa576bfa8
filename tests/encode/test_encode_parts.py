"""Parts: what their edges may cut, what a second run does, and that a broken-off encode ends with the same bytes."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fusionkit.encode import EncodeProgress, EncodeReport
from fusionkit.encode.batches import Part
from fusionkit.encode.job import make_job
from fusionkit.encode.part_records import PartRecord, all_parts, finished_part, finished_parts
from fusionkit.encode.parts import ComputedPart, PartEncoder
from fusionkit.encode.pipeline import SWITCH_SECONDS, quick_switches, serial_parts
from fusionkit.encode.plan import write_plan
from fusionkit.encode.upload import BatchWork, in_one_copy
from fusionkit.encoder import Encoder
from fusionkit.errors import FusionkitError, StoppedError, StoreError
from fusionkit.sources import Source, guess_columns
from fusionkit.specs import EncodeSpec
from fusionkit.store import layout, open_store
from fusionkit.store.chunks import write_chunk
from fusionkit.store.manifest import read_plan

Same = Callable[[Path, Path], None]
Content = Callable[[Path], dict[str, bytes]]
pytestmark = pytest.mark.usefixtures("small_parts")
Encoding = Callable[..., EncodeReport]
Alone = Callable[..., tuple[NDArray[np.float32], list[int | None]]]
SPEC = {"rows": "tokens", "dtype": "float32"}


def of_chunks(content: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in content.items() if "/hidden_states/c/" in name}


def stopping_after(count: int, encoder: Encoder) -> Any:
    """Finish some parts, then be interrupted."""

    def run(store: Path, plan: dict[str, Any], parts: list[Part], watch: EncodeProgress) -> Iterator[PartRecord]:
        yield from serial_parts(encoder, stop=lambda: False)(store, plan, parts[:count], watch)
        raise KeyboardInterrupt

    return run


@pytest.mark.parametrize(
    ("constant", "value"),
    [("CHUNK_BYTES", 3 * 4 * 16 * 4), ("CHUNK_BYTES", 1), ("PART_TOKENS", 7)],
    ids=["three-rows", "one-row", "seven-sub-tokens"],
)
def test_an_example_may_be_larger_than_a_part(
    source: Source, encoded: Encoding, folder: Path, alone: Alone, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, constant: str, value: int,
) -> None:  # fmt: skip
    few = Source("few", {"train": source.splits["train"].head(3)})
    monkeypatch.setattr(layout, constant, value)
    encoded(few, tmp_path / "s", **SPEC)
    store = open_store(tmp_path / "s")
    fields = store.manifest["splits"]["train"]
    longest = int(np.diff(store["train"].row_offsets).max())
    assert fields["rows_per_chunk"] < longest
    assert len(fields["chunks"]["hidden_states"]) == -(-fields["rows"] // fields["rows_per_chunk"]) > 3
    expected = [alone(str(folder), words)[0] for words in few.splits["train"].head()["tokens"].to_pylist()]
    found = store["train"].hidden_states[:].transpose(1, 0, 2)  # [layers, rows, hidden]
    np.testing.assert_allclose(found, np.concatenate(expected, axis=1), rtol=1e-5, atol=1e-5)


def test_a_finished_store_holds_what_it_should_and_no_plan(whole: Path) -> None:
    assert sorted(path.name for path in whole.iterdir()) == ["examples", "manifest.json", "parts", "states.zarr"]
    assert len(list((whole / "parts").iterdir())) == 7 + 3


def test_parts_are_of_even_height(whole: Path) -> None:
    for fields in open_store(whole).manifest["splits"].values():
        assert 36 <= fields["rows_per_chunk"] <= 44
        last = fields["rows"] - fields["rows_per_chunk"] * (len(fields["chunks"]["hidden_states"]) - 1)
        assert fields["rows_per_chunk"] - last < len(fields["chunks"]["hidden_states"])


def test_a_second_run_reports_complete_and_touches_nothing(source: Source, encoded: Encoding, whole: Path) -> None:
    before = {file: file.stat().st_mtime_ns for file in whole.rglob("*")}
    report = encoded(source, whole)
    assert (report.outcome, report.tokens) == ("complete", 0)
    assert report.manifest == json.loads((whole / "manifest.json").read_text())
    assert {file: file.stat().st_mtime_ns for file in whole.rglob("*")} == before


def test_an_interrupted_encode_goes_on_and_ends_with_the_same_bytes(
    source: Source, encoder: Encoder, encoded: Encoding, assert_same: Same, whole: Path, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        encoded(source, tmp_path / "s", run_parts=stopping_after(4, encoder))
    assert not (tmp_path / "s" / "manifest.json").exists()
    assert len(list((tmp_path / "s" / "parts").iterdir())) == 4
    report = encoded(source, tmp_path / "s")
    assert report.outcome == "resumed"
    assert_same(tmp_path / "s", whole)
    # Four parts were there: only the sub-tokens of the others were encoded again.
    parts = [json.loads(file.read_text()) for file in sorted((tmp_path / "s" / "parts").iterdir())]
    assert report.tokens == sum(part["tokens"] for part in parts[4:]) > 0


@pytest.mark.parametrize("spoilt", ["record cut off", "chunk cut off", "all"])
def test_parts_that_were_lost_are_made_again(
    source: Source, encoder: Encoder, encoded: Encoding, assert_same: Same, whole: Path, tmp_path: Path, spoilt: str
) -> None:
    with pytest.raises(KeyboardInterrupt):
        encoded(source, tmp_path / "s", run_parts=stopping_after(4, encoder))
    records = sorted((tmp_path / "s" / "parts").iterdir())
    chunks = sorted((tmp_path / "s" / "states.zarr" / "train" / "hidden_states" / "c").glob("*/0/0"))
    for file in records + chunks if spoilt == "all" else []:
        file.unlink()
    if spoilt.endswith("cut off"):
        file = records[2] if "record" in spoilt else chunks[2]
        file.write_bytes(file.read_bytes()[:-10])
    assert encoded(source, tmp_path / "s").outcome == "resumed"
    assert_same(tmp_path / "s", whole)


@pytest.mark.parametrize("writers", [1, 4])
def test_parts_in_any_order_and_from_anyone_give_the_same_bytes(
    source: Source, encoder: Encoder, encoded: Encoding, content: Content, whole: Path, tmp_path: Path, writers: int
) -> None:
    def backwards(*of: Any) -> Iterator[PartRecord]:
        store, plan, parts, watch = of
        return serial_parts(encoder, stop=lambda: False, writers=writers)(store, plan, parts[::-1], watch)

    encoded(source, tmp_path / "s", run_parts=backwards)
    assert of_chunks(content(tmp_path / "s")) == of_chunks(content(whole))
    assert len(of_chunks(content(tmp_path / "s"))) == 10


def test_an_encode_asked_to_stop_ends_between_two_parts(
    source: Source, encoded: Encoding, assert_same: Same, whole: Path, tmp_path: Path
) -> None:
    asked = iter([False, False, False, True])
    with pytest.raises(StoppedError, match="stopped with 7 of 10 parts"):
        encoded(source, tmp_path / "s", stop=lambda: next(asked))
    assert sorted(file.name for file in (tmp_path / "s" / "parts").iterdir()) == [
        f"train-0000{i}.json" for i in range(3)
    ]
    assert encoded(source, tmp_path / "s").outcome == "resumed"
    assert_same(tmp_path / "s", whole)


def test_a_stop_after_the_last_part_is_no_stop(source: Source, encoded: Encoding, tmp_path: Path) -> None:
    asked = iter([False] * 10)
    assert encoded(source, tmp_path / "s", stop=lambda: next(asked, True)).outcome == "encoded"


@pytest.mark.parametrize("rows", ["tokens", "words-mean"])
def test_batches_that_came_to_the_device_in_one_copy_give_the_same_bytes(
    source: Source, encoded: Encoding, content: Content, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: str
) -> None:
    encoded(source, tmp_path / "one-by-one", rows=rows)
    counts = []

    def packed(work: Iterator[BatchWork], device: torch.device) -> Iterator[BatchWork]:
        counts.append(len(whole := list(work)))
        return in_one_copy(whole, device)

    monkeypatch.setattr("fusionkit.encode.parts.ready", packed)  # as on a GPU
    encoded(source, tmp_path / "packed", rows=rows)
    assert max(counts) > 1
    assert of_chunks(content(tmp_path / "packed")) == of_chunks(content(tmp_path / "one-by-one"))


def test_a_split_that_repeats_another_is_encoded_where_batches_come_in_one_copy(
    source: Source, encoded: Encoding, content: Content, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is left to compute for its parts."""
    twice = Source("twice", {"train": source.splits["train"], "test": source.splits["train"]})
    encoded(twice, tmp_path / "one-by-one")
    monkeypatch.setattr("fusionkit.encode.parts.ready", lambda work, device: in_one_copy(list(work), device))
    encoded(twice, tmp_path / "packed")
    assert of_chunks(content(tmp_path / "packed")) == of_chunks(content(tmp_path / "one-by-one"))


def test_a_part_that_cannot_be_written_ends_the_work_of_all_writers_and_the_others_stay(
    source: Source, encoder: Encoder, encoded: Encoding, assert_same: Same, whole: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def broken(path: Path, *given: Any) -> Any:
        if "/c/4/" in str(path):
            raise FusionkitError("the disk is full")
        return write_chunk(path, *given)

    def several(*of: Any) -> Iterator[PartRecord]:
        return serial_parts(encoder, stop=lambda: False, writers=3)(*of)

    with monkeypatch.context() as patch:
        patch.setattr("fusionkit.encode.parts.write_chunk", broken)
        with pytest.raises(FusionkitError, match="the disk is full"):
            encoded(source, tmp_path / "s", run_parts=several)
    assert {f"train-0000{i}.json" for i in range(4)} <= {file.name for file in (tmp_path / "s" / "parts").iterdir()}
    assert encoded(source, tmp_path / "s", run_parts=several).outcome == "resumed"
    assert_same(tmp_path / "s", whole)


def test_no_more_parts_are_computed_and_unwritten_than_there_are_buffers(
    source: Source, encoder: Encoder, tmp_path: Path
) -> None:
    write_plan(make_job(source, guess_columns(source), tmp_path / "s", EncodeSpec(), encoder))
    plan = read_plan(tmp_path / "s")
    parts = PartEncoder(tmp_path / "s", plan, encoder, buffers=2)
    computed: list[ComputedPart] = []

    def compute(part: Part) -> None:
        computed.append(parts.compute(part, parts.read(part), 0.0, lambda _: None))

    first, second, third, fourth = all_parts(plan)[:4]
    compute(first)
    parts.write(computed[0])
    compute(second)
    assert computed[1].buffer is computed[0].buffer  # a free one before a new one
    compute(third)
    assert computed[2].buffer is not computed[1].buffer
    waiting = threading.Thread(target=compute, args=[fourth], daemon=True)
    waiting.start()
    waiting.join(timeout=0.2)
    assert len(computed) == 3
    parts.write(computed[1])
    waiting.join(timeout=30)
    assert computed[3].buffer is computed[1].buffer


def test_the_record_of_another_plan_is_no_finished_part(
    source: Source, encoder: Encoder, encoded: Encoding, assert_same: Same, whole: Path, tmp_path: Path
) -> None:
    """A process that works on an earlier plan, of another checkpoint, may write late."""
    earlier = dataclasses.replace(encoder, identity={**encoder.identity, "weights": "0123"})
    for name, model in (("earlier", earlier), ("s", encoder)):
        with pytest.raises(KeyboardInterrupt):
            encoded(source, tmp_path / name, model=model, run_parts=stopping_after(4, encoder))
    out = tmp_path / "s"
    records = sorted((out / "parts").iterdir())
    shutil.copy(tmp_path / "earlier" / "parts" / records[1].name, records[1])
    unbound = json.loads(records[2].read_text())
    del unbound["plan"]
    records[2].write_text(json.dumps(unbound))
    plan = read_plan(out)
    assert list(finished_parts(out, plan)) == [Part("train", 0), Part("train", 3)]
    assert [finished_part(out, plan, Part("train", chunk)) is None for chunk in range(4)] == [False, True, True, False]
    report = encoded(source, out)
    assert report.outcome == "resumed"
    assert_same(out, whole)
    parts = [json.loads(file.read_text()) for file in sorted((out / "parts").iterdir())]
    assert report.tokens == sum(part["tokens"] for part in [*parts[1:3], *parts[4:]])


def test_a_part_has_no_record_where_its_store_was_planned_anew_while_its_chunk_was_written(
    source: Source, encoder: Encoder, tmp_path: Path
) -> None:
    write_plan(make_job(source, guess_columns(source), tmp_path / "s", EncodeSpec(), encoder))
    plan = read_plan(tmp_path / "s")
    check = Mock(side_effect=[None, StoreError("planned anew")])
    with pytest.raises(StoreError, match="planned anew"):
        PartEncoder(tmp_path / "s", plan, encoder).encode(all_parts(plan)[0], check=check)
    assert list((tmp_path / "s" / "parts").iterdir()) == []


def test_threads_change_quickly_while_a_gpu_encodes_and_as_before_after_an_error() -> None:
    inside: list[float] = []

    def fail() -> None:
        with quick_switches():
            inside.append(sys.getswitchinterval())
            raise ValueError("the disk")

    before = sys.getswitchinterval()
    with pytest.raises(ValueError, match="the disk"):
        fail()
    assert inside == [pytest.approx(SWITCH_SECONDS)]
    assert sys.getswitchinterval() == before
