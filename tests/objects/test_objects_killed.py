"""kill -9 of the real command at any moment leaves on S3 the old store, the new one to be gone on with, or none."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusionkit.errors import StoreError
from fusionkit.store import is_complete, is_store, open_store, verify_store

Encoding = Callable[..., Any]
Same = Callable[..., None]
Command = Callable[..., Any]
SEED = 4


@pytest.fixture
def arguments(place: Path, model: Path, bucket: Any) -> list[object]:
    """The command that encodes into the bucket's store."""
    return ["encode", place, "--encoder", model, "--device", "cpu", "--out", bucket.address("s")]


@pytest.mark.parametrize("kills", [pytest.param(50, marks=pytest.mark.soak("kills"))])
def test_an_encode_killed_at_any_moment_ends_with_the_same_bytes(
    bucket: Any, place: Path, model: Path, fusionkit: Command, encoded: Encoding, assert_same: Same, kills: int
) -> None:
    command = ["encode", place, "--encoder", model, "--device", "cpu", "--out"]
    rng = random.Random(SEED)
    moments: Counter[str] = Counter()
    began = time.perf_counter()
    assert fusionkit(*command, bucket / "undisturbed" / "s").code == 0
    longest = time.perf_counter() - began
    for number in range(kills):
        out = bucket / f"{number}" / "s"
        while (ended := fusionkit(*command, out, after=rng.uniform(0, longest))).code == 0:
            out.fs.rm(out.path, recursive=True)  # it came too late
        assert ended.code == -9
        at = "complete" if is_complete(out) else "planned" if is_store(out) else "not planned"
        moments[at] += 1
        expected = {"complete": "complete", "planned": "resumed", "not planned": "encoded"}[at]
        assert encoded(out).outcome == expected
        assert_same(bucket.folder / str(number) / "s")
    print(f"{kills} kills: {dict(moments)}")
    assert moments.total() == kills
    assert moments["complete"] <= kills // 2


# What the command is about to send, and what it leaves of a store of words when it overwrites it with one of means.
MOMENTS = {
    "PutObject s/.planning": "old",
    "DeleteObjects s/manifest.json": "old",
    "DeleteObjects s/states.zarr": "none",
    "PutObject s/examples/train.parquet": "none",
    "PutObject s/plan.json": "none",
    "DeleteObjects s/.planning": "begun",
    "PutObject s/states.zarr/train/hidden_states/c/0/0/0": "begun",
    "PutObject s/parts/train-00001.json": "begun",
    "PutObject s/manifest.json": "begun",
    "DeleteObjects s/plan.json": "new",
}
# One moment for each of what may be left; the others are in the soak.
IN_GATE = {left: moment for moment, left in reversed(MOMENTS.items())}.values()


@pytest.mark.parametrize(
    "moment",
    [pytest.param(each, marks=() if each in IN_GATE else pytest.mark.soak("kills")) for each in MOMENTS],
)
def test_a_kill_while_a_store_is_overwritten_never_mixes_two_stores(
    bucket: Any, arguments: list[object], fusionkit: Command, encoded: Encoding, assert_same: Same,
    copied: Callable[..., Any], local: Callable[..., Path], moment: str,
) -> None:  # fmt: skip
    out = copied(local())
    assert fusionkit(*arguments, "--rows", "mean", "--overwrite", moment=moment).code == -9
    left = MOMENTS[moment]
    if left in ("old", "new"):
        assert open_store(out).rows == {"old": "words", "new": "mean"}[left]
        assert [checked.fault for checked in verify_store(out) if checked.fault] == []
    else:
        with pytest.raises(StoreError, match="is not finished" if left == "begun" else "is no store"):
            open_store(out)
    if left == "old":
        assert encoded(out).outcome == "complete"
        assert_same(bucket.folder / "s")
    else:
        expected = {"none": "encoded", "begun": "resumed", "new": "complete"}[left]
        assert encoded(out, rows="mean").outcome == expected
        assert_same(bucket.folder / "s", rows="mean")


@pytest.mark.soak("kills")
@pytest.mark.parametrize("moment", ["PutObject s/states.zarr/train/row_offsets/c/0", "DeleteObjects s/.planning"])
def test_a_store_killed_while_it_was_planned_gives_way_to_another(
    bucket: Any, arguments: list[object], fusionkit: Command, encoded: Encoding, assert_same: Same, moment: str
) -> None:
    """Half of a plan is cleared away; a whole one is refused or overwritten like any store."""
    assert fusionkit(*arguments, moment=moment).code == -9
    out = bucket / "s"
    assert (out / ".planning").is_file()
    assert encoded(out, rows="mean", overwrite=is_store(out)).outcome == "encoded"
    assert_same(bucket.folder / "s", rows="mean")


@pytest.mark.soak("kills")
def test_a_kill_while_a_plan_is_cleared_away_can_be_repeated(
    bucket: Any, arguments: list[object], fusionkit: Command, encoded: Encoding, assert_same: Same
) -> None:
    """The marker goes last: without it, the rest would pass for somebody else's files."""
    assert fusionkit(*arguments, moment="PutObject s/plan.json").code == -9
    for moment in ("DeleteObjects s/states.zarr", "DeleteObjects s/.planning"):
        assert fusionkit(*arguments, moment=moment).code == -9
        assert (bucket / "s" / ".planning").is_file()
    assert encoded(bucket / "s").outcome == "encoded"
    assert_same(bucket.folder / "s")
