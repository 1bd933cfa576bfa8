"""Stores on S3 hold what local ones hold, object for object, also when they are gone on with or overwritten."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusionkit.encode.part_records import all_parts, finished_parts, record_failure, store_status
from fusionkit.errors import FusionkitError, IdentityError, StoppedError, UsageError
from fusionkit.io.places import read_all, sizes_below
from fusionkit.store import is_complete, is_store, open_store
from fusionkit.store.manifest import read_plan

Encoding = Callable[..., Any]
Same = Callable[..., None]
Content = Callable[[Path], dict[str, Any]]
Requests = Any
WHOLE = pytest.mark.soak("products")
SPECS = [
    {},
    pytest.param({"dtype": "int8"}, marks=WHOLE),  # the gate verifies and reads int8 there
    pytest.param({"compress": "zstd"}, marks=WHOLE),
    {"dtype": "bfloat16", "rows": "mean"},
]


def stopping_after(parts: int) -> Callable[[], bool]:
    """Somebody who asks to stop before the next part but so many."""
    left = iter([False] * parts)
    return lambda: next(left, True)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_a_store_on_s3_holds_the_same_bytes_as_a_local_one(
    bucket: Any, encoded: Encoding, assert_same: Same, spec: dict[str, str]
) -> None:
    assert encoded(bucket / "s", **spec).outcome == "encoded"
    assert_same(bucket.folder / "s", **spec)
    assert encoded(bucket / "s", **spec).outcome == "complete"
    assert_same(bucket.folder / "s", **spec)


def test_a_stopped_encode_is_gone_on_with_by_parts(
    bucket: Any, encoded: Encoding, assert_same: Same, requests: Requests
) -> None:
    out = bucket / "s"
    with pytest.raises(StoppedError):
        encoded(out, stop=stopping_after(5))
    done = {path.name: path.read_bytes() for path in (bucket.folder / "s" / "parts").iterdir()}
    assert 5 <= len(done) < 12
    assert is_store(out)
    assert not is_complete(out)
    requests.clear()
    assert encoded(out).outcome == "resumed"
    assert_same(bucket.folder / "s")
    written = Counter(key for operation, key in requests if operation == "PutObject")
    # A chunk and a record for each part that was missing, the manifest and the lock.
    assert written.total() == 2 * (12 - len(done)) + 2
    assert not [key for key in written if key.removeprefix("s/parts/") in done]
    for name, record in done.items():
        assert (bucket.folder / "s" / "parts" / name).read_bytes() == record


def test_status_tells_what_is_done_and_set_aside_until_all_is_done(bucket: Any, encoded: Encoding) -> None:
    out = bucket / "s"
    with pytest.raises(StoppedError):
        encoded(out, stop=stopping_after(5))
    missing = next(part for part in all_parts(read_plan(out)) if part not in finished_parts(out, read_plan(out)))
    record_failure(out, missing, FusionkitError("it broke"), attempts=3)
    found = store_status(out)
    assert found["state"] == "unfinished"
    assert sum(split["done"] for split in found["splits"].values()) == len(list((bucket.folder / "s/parts").iterdir()))
    (failed,) = found["failed"]
    assert (failed["split"], failed["chunk"], failed["attempts"]) == (missing.split, missing.chunk, 3)
    assert failed["error"].startswith("it broke")
    assert encoded(out).outcome == "resumed"
    found = store_status(out)
    assert (found["state"], found["failed"]) == ("complete", [])
    assert not sizes_below(out / "failed")


@pytest.mark.parametrize("spoilt", ["a record cut off", "no chunk behind a record", "a chunk cut off"])
def test_a_part_that_is_not_whole_is_encoded_again(
    bucket: Any, encoded: Encoding, assert_same: Same, requests: Requests, spoilt: str
) -> None:
    out = bucket / "s"
    with pytest.raises(StoppedError):
        encoded(out, stop=stopping_after(3))
    record, chunk = out / "parts" / "train-00001.json", out / "states.zarr/train/hidden_states/c/1/0/0"
    if spoilt == "no chunk behind a record":
        chunk.unlink()
    else:
        path = record if "record" in spoilt else chunk
        path.write_bytes(path.read_bytes()[:-1000] if path is chunk else b"{")
    requests.clear()
    assert encoded(out).outcome == "resumed"
    assert_same(bucket.folder / "s")
    assert ("PutObject", "s/states.zarr/train/hidden_states/c/1/0/0") in requests
    assert ("PutObject", "s/states.zarr/train/hidden_states/c/0/0/0") not in requests


def test_a_store_of_something_else_is_refused_or_overwritten(
    bucket: Any, encoded: Encoding, assert_same: Same, local: Callable[..., Path]
) -> None:
    out = bucket / "s"
    encoded(out)
    with pytest.raises(IdentityError, match="holds something else"):
        encoded(out, rows="mean")
    assert_same(bucket.folder / "s")
    assert encoded(out, rows="mean", overwrite=True).outcome == "encoded"
    assert_same(bucket.folder / "s", rows="mean")
    # An unfinished one of something else, too.
    with pytest.raises(StoppedError):
        encoded(out, overwrite=True, stop=stopping_after(2))
    assert encoded(out, rows="mean", overwrite=True).outcome == "encoded"
    assert_same(bucket.folder / "s", rows="mean")


def test_other_objects_are_never_touched(bucket: Any, encoded: Encoding, assert_same: Same, content: Content) -> None:
    """Of the same beginning, in the store's place, or the place itself."""
    for name in ("s2/plan.json", "s.txt", "mine/notes.txt", "mine/deep/manifest.json", "object"):
        (bucket / name).write_bytes(name.encode())
    encoded(bucket / "s", rows="mean")
    encoded(bucket / "s", rows="cls", overwrite=True)
    for name in ("mine", "object"):
        for overwrite in (False, True):
            with pytest.raises(UsageError, match="exists and is no store") as caught:
                encoded(bucket / name, rows="mean", overwrite=overwrite)
            assert caught.value.remedy is not None
            assert "nothing was touched" in caught.value.remedy
    assert_same(bucket.folder / "s", rows="cls")
    others = {name: body for name, body in content(bucket.folder).items() if not name.startswith("s/")}
    assert others == {
        name: name.encode() for name in ("s2/plan.json", "s.txt", "mine/notes.txt", "mine/deep/manifest.json", "object")
    }


def test_parts_are_found_by_listing(bucket: Any, encoded: Encoding, requests: Requests) -> None:
    """A beginning has nothing to ask for, and whoever opens a store does not ask for its parts."""
    out = bucket / "s"
    encoded(out)
    about_parts = Counter(operation for operation, key in requests if key.startswith("s/parts"))
    # Each record is written once and read once (fsspec asks for its size before). The listings before and after the
    # work are one request each, and two more where nothing is found.
    assert about_parts == {"PutObject": 12, "GetObject": 12, "HeadObject": 12 + 1, "ListObjectsV2": 2 + 1}
    requests.clear()
    opened = open_store(out)
    assert [len(opened[split]) for split in opened.splits] == [36, 8]
    assert len(requests) < 40
    assert not [key for _, key in requests if "parts" in key or "/c/0/0" in key]


def test_many_objects_are_listed_together_and_read_side_by_side(bucket: Any, requests: Any) -> None:
    folder = bucket.folder / "many" / "parts"
    folder.mkdir(parents=True)
    names = [f"{number:04}.json" for number in range(1200)]
    for number, name in enumerate(names):
        (folder / name).write_bytes(b"x" * number)
    (folder / "deep").mkdir()
    (folder / "deep" / "1.json").write_bytes(b"12345")
    requests.clear()
    expected = {"deep/1.json": 5, **{name: number for number, name in enumerate(names)}}
    assert sizes_below(bucket / "many" / "parts") == expected
    assert Counter(operation for operation, _ in requests) == {"ListObjectsV2": 2}  # a thousand at a time
    requests.clear()
    assert read_all(bucket / "many" / "parts", [f"{number}.absent" for number in range(300)]) == {}
    assert Counter(operation for operation, _ in requests) == {"ListObjectsV2": 2}
    assert requests.peak == 1
    found = read_all(bucket / "many" / "parts", [*names[:300], "absent"])
    assert found == {name: b"x" * number for number, name in enumerate(names[:300])}
    assert requests.peak > 8
