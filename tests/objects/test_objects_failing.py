"""A server that goes away: one clear error whatever was under way, and what was finished is kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientPayloadError
from aiohttp.http_exceptions import ContentLengthError

from fusionkit.errors import StoreError
from fusionkit.io.object_storage import is_passing
from fusionkit.store import open_store, verify_store

Encoding = Callable[..., Any]


def test_an_encode_keeps_the_parts_that_were_finished(doomed: Any, encoded: Encoding, tmp_path: Path) -> None:
    asked = iter(range(100))

    def stop() -> bool:
        if next(asked) == 6:
            doomed.stop()
        return False

    with pytest.raises(StoreError, match=r"cannot use s3://bucket/begun") as caught:
        encoded(doomed.begun, stop=stop)
    assert "check the address, the credentials" in str(caught.value.remedy)
    kept = tmp_path / "buckets" / "bucket" / "begun"
    assert (kept / "plan.json").is_file()
    assert len(list((kept / "parts").iterdir())) >= 4


READS: dict[str, Callable[[Any, Any], Any]] = {
    "slice": lambda path, opened: opened["train"].hidden_states[:],
    "take": lambda path, opened: opened["train"].take([0, 5]),
    "mask": lambda path, opened: opened["train"].row_mask,
    "examples": lambda path, opened: opened["train"].examples,
    "split": lambda path, opened: opened["validation"],
    "open": lambda path, opened: open_store(path),
    "verify": lambda path, opened: list(verify_store(path)),
}


def test_a_reader_is_told_of_the_place(doomed: Any) -> None:
    opened = open_store(doomed.out)
    assert len(opened["train"]) == 36
    doomed.stop()
    for name, read in READS.items():
        with pytest.raises(StoreError, match=r"cannot use s3://bucket/s") as caught:
            read(doomed.out, opened)
        assert "the network" in str(caught.value.remedy), name


def test_a_verify_that_cannot_go_on_says_so(doomed: Any) -> None:
    """What was not read is not called missing."""
    seen = verify_store(doomed.out)
    assert next(seen).fault is None
    doomed.stop()
    with pytest.raises(StoreError, match=r"cannot use s3://bucket/s"):
        list(seen)


def test_an_answer_that_breaks_off_is_asked_for_again() -> None:
    error = ClientPayloadError("Response payload is not completed")
    error.__cause__ = ContentLengthError("Not enough data")  # with a status of aiohttp's own
    assert is_passing(error)
