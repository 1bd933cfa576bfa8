"""A server that keeps silent, stops in an answer, is busy or gone: bounded tries, one error, and the work goes on."""

from __future__ import annotations

import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fsspec.asyn import sync
from upath import UPath

from fusionkit.errors import UsageError
from fusionkit.io.object_storage import Limits, Request, UnansweredError, answer, ask, options_of
from fusionkit.io.places import place_of, read_bytes
from fusionkit.store import open_store

# The library's own waits are set when it is made, the tries with each request.
SHORT = {"FUSIONKIT_STORAGE_TIMEOUT": "0.4", "FUSIONKIT_STORAGE_TRIES": "2"}
REQUESTS = {
    "looking up": Request("info", ("bucket/s/a",)),
    "reading": Request("cat_file", ("bucket/s/a",), size=None),
    "writing": Request("pipe_file", ("bucket/s/a", b"content"), size=7),
    "removing": Request("rm", (["bucket/s/a"],), size=None),
    "listing": Request("find", ("bucket/s",), size=None),
}


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SHORT.items():
        monkeypatch.setenv(name, value)


def filesystem_of(library: str, url: str) -> Any:
    """A filesystem of s3fs's or obstore's with our limits, for one server."""
    module: Any = pytest.importorskip(library)
    if library == "s3fs":
        kind = module.S3FileSystem
        return kind(endpoint_url=url, key="key", secret="secret", **options_of(kind))
    kind = pytest.importorskip("obstore.fsspec").FsspecStore
    return kind("s3", endpoint=url, access_key_id="key", secret_access_key="secret", **options_of(kind))


@pytest.mark.product
@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("library", ["s3fs", "obstore"])
@pytest.mark.parametrize("how", ["silent", "half", "busy", "gone"])
def test_every_request_ends(between: Any, library: str, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    url = between.url
    if how == "gone":
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{free.getsockname()[1]}"
    between.fail(how)
    filesystem = filesystem_of(library, url)

    def error_of(request: Request) -> UnansweredError:
        with pytest.raises(UnansweredError) as caught:
            sync(filesystem.loop, answer, filesystem, "s3://bucket/s", request)
        return caught.value

    with ThreadPoolExecutor(len(REQUESTS)) as pool:
        errors = dict(zip(REQUESTS, pool.map(error_of, REQUESTS.values()), strict=True))
    for doing, error in errors.items():
        assert error.exit_code == 1
        assert error.what.startswith(f"cannot use s3://bucket/s: {doing} failed after "), error.what
        assert all(name in str(error.remedy) for name in (*SHORT, "run the same command again", "the network"))
    # A try is one request; only a library that a deadline cut off may have sent fewer.
    assert len(between.asked) <= 2 * len(REQUESTS)
    assert (how == "gone") == (between.asked == [])


def test_what_fails_once_is_asked_again(bucket: Any, between: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    out = through(bucket, between)
    for how, operation in (("busy", "PUT"), ("silent", "GET")):
        monkeypatch.setenv("FUSIONKIT_STORAGE_TRIES", "20")
        between.fail(how, operation, times=1)
        if operation == "PUT":
            ask(out, "pipe_file", out.path, b"content", size=7)
        assert read_bytes(out) == b"content"
        assert len(between.asked) == 1


def through(bucket: Any, between: Any) -> UPath:
    """A place in the bucket that is asked for through the proxy, whose server may take half a second to answer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FUSIONKIT_STORAGE_TIMEOUT", "0.5")
        made = bucket / "s"
        found: UPath = UPath(str(made), **made.storage_options, endpoint_url=between.url)
        return found


def test_a_chunk_that_zarr_waits_for_is_given_up(
    bucket: Any, between: Any, copied: Callable[..., Any], local: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    copied(local())
    monkeypatch.setenv("FUSIONKIT_STORAGE_TRIES", "50")
    states = open_store(through(bucket, between))["train"].hidden_states
    monkeypatch.setenv("FUSIONKIT_STORAGE_TRIES", "2")
    between.fail("half", "GET hidden_states/c")
    with pytest.raises(UnansweredError, match=r"cannot use s3://bucket-\d+/s/states.zarr/train"):
        _ = states[:]


@pytest.mark.parametrize(
    ("how", "at"),
    [
        ("silent", "PUT row_offsets/c"),
        pytest.param("half", "GET plan.json", marks=pytest.mark.soak("kills")),
        pytest.param("busy", "PUT hidden_states/c/3", marks=pytest.mark.soak("kills")),
    ],
)
def test_an_encode_ends_and_goes_on_when_the_server_answers_again(
    bucket: Any, between: Any, place: Path, model: Path, fusionkit: Callable[..., Any], encoded: Callable[..., Any],
    assert_same: Callable[..., None], how: str, at: str,
) -> None:  # fmt: skip
    between.fail(how, at)
    environment = {"AWS_ENDPOINT_URL": between.url, **SHORT}
    command = ["encode", place, "--encoder", model, "--device", "cpu", "--out", bucket / "s"]
    ended = fusionkit(*command, environment=environment)
    assert (ended.code, ended.out) == (1, ""), ended.err
    assert ended.err.count("cannot use s3://") == 1
    assert "Traceback" not in ended.err
    assert encoded(bucket / "s", overwrite=False).outcome in ("encoded", "resumed")
    assert_same(bucket.folder / "s")


@pytest.mark.parametrize("name", SHORT)
@pytest.mark.parametrize("value", ["0", "-1", "soon", "inf", "nan"])
def test_limits_that_are_no_numbers_are_wrong_use(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=f"{name} has a wrong value") as caught:
        place_of("s3://bucket/s")
    assert (caught.value.received, caught.value.exit_code) == (value, 2)


def test_all_tries_together_take_less_than_two_minutes_by_default() -> None:
    """Five tries of 20 s and pauses of 1, 2, 4 and 8; an upload of 64 MiB may take four times as long as an answer."""
    limits = Limits(20, 5)
    assert limits.of_all(0) == 5 * 20 + 1 + 2 + 4 + 8
    assert limits.of_all(64 << 20) == limits.of_all(0) + 4 * 20
    assert [0.5 * top <= limits.pause(done) <= top for done, top in enumerate((1, 2, 4, 8, 8), 1)] == [True] * 5
