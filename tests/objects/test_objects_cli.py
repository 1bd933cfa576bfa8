"""The command line with addresses: what it does on S3, and one clear error where it cannot."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]


def test_a_store_on_s3_is_encoded_shown_verified_and_fitted(
    bucket: Any, place: Path, model: Path, fusionkit: Command, assert_same: Callable[..., None],
    local: Callable[..., Path], tmp_path: Path,
) -> None:  # fmt: skip
    address, cache = bucket.address("all/s"), {"FUSIONKIT_CACHE_DIR": str(tmp_path / "cache"), "FUSIONKIT_CACHE": "3GB"}
    made = fusionkit("encode", place, "--encoder", model, "--device", "cpu", "--out", address)
    assert (made.code, made.out.split(":")[0]) == (0, "s3")
    assert made.out.startswith(f"{address}: 277 rows of words × 3 layers × 16, ")
    assert_same(bucket.folder / "all" / "s")
    again = fusionkit("encode", place, "--encoder", model, "--device", "cpu", "--out", f"{address}/")
    assert (again.code, again.out) == (0, f"{address} is complete already: nothing to do\n")
    shown = fusionkit("info", address, "--json", environment=cache)
    facts = json.loads(shown.out)
    sizes = {path: path.stat().st_size for path in (bucket.folder / "all" / "s").rglob("*") if path.is_file()}
    # All but the manifest, which holds the checksums, and the records of the work are verified.
    size, files = sum(sizes.values()), len([path for path in sizes if path.parent.name != "parts"]) - 1
    assert (shown.code, facts["path"], facts["bytes"], facts["rows_total"]) == (0, address, size, 277)
    assert facts["reads"] == f"whole chunks, kept in a cache of 3 GB in {tmp_path / 'cache' / 'chunks'}"
    told = fusionkit("info", address, environment=cache)
    assert (told.code, told.err) == (0, "")
    assert f"store     {address} (" in told.out
    assert f"read by   {facts['reads']}" in told.out
    checked = fusionkit("verify", address)
    assert (checked.code, checked.out.splitlines()) == (0, [f"{address}: all {files} files are intact"])
    how = ["--fusion", "linear", "--epochs", 1, "--json"]
    fitted, beside = (
        fusionkit("fit", store, "--out", tmp_path / name, *how, environment=cache)
        for name, store in (("there", address), ("here", local()))
    )
    assert fitted.code == 0, fitted.err
    (run,), (expected,) = json.loads(fitted.out), json.loads(beside.out)
    assert (run["status"], run["store"]) == ("finished", facts["digest"])
    assert run["validation_score"] == expected["validation_score"]
    assert any((tmp_path / "cache" / "chunks").iterdir())
    # A report finds the store by its address and by that of a folder; a wrong one is refused before any work.
    page = ["report", tmp_path / "there", "--out", tmp_path / "page.html", "--json"]
    for where in (address, bucket.address("all")):
        drawn = fusionkit(*page, "--store", where, environment=cache)
        assert drawn.code == 0, drawn.err
        assert not [told for told in json.loads(drawn.out)["left_out"] if "store" in told]
    wrong = fusionkit(*page, "--store", bucket.address("typo"))
    assert (wrong.code, "holds no finished store" in wrong.err, "does not exist" in wrong.err) == (2, True, True)


def test_a_store_on_s3_goes_through_obstore_where_s3fs_is_missing(
    bucket: Any, place: Path, model: Path, fusionkit: Command, assert_same: Callable[..., None]
) -> None:
    """Written, gone on with, verified and mended; chunks are read by Zarr."""
    pytest.importorskip("obstore")
    http = {"AWS_ALLOW_HTTP": "true"}
    how: dict[str, Any] = {"without": ("s3fs",), "environment": http}
    encode = ["encode", place, "--encoder", model, "--device", "cpu", "--out", bucket / "s"]
    assert fusionkit(*encode, **how).code == 0
    assert_same(bucket.folder / "s")
    (bucket / "s" / "manifest.json").rename("s3://" + (bucket / "s" / "plan.json").path)
    (bucket / "s" / "parts" / "train-00003.json").unlink()
    resumed = fusionkit(*encode, "--json", **how)
    assert (resumed.code, json.loads(resumed.out)["outcome"]) == (0, "resumed"), resumed.err
    assert_same(bucket.folder / "s")
    (bucket / "s" / "states.zarr/train/hidden_states/c/2/0/0").unlink()
    mended = fusionkit("verify", bucket / "s", "--repair", "--sample", 3, **how)
    assert (mended.code, "1 chunk encoded again" in mended.out) == (0, True), mended.err
    assert_same(bucket.folder / "s")
    unsigned = fusionkit(
        "info", bucket / "s", without=("s3fs",), environment={"AWS_SECRET_ACCESS_KEY": "wrong", **http}
    )
    assert unsigned.code == 1
    assert unsigned.err.startswith(f"fusionkit: cannot use {bucket / 's'}")


UNREACHABLE: dict[str, tuple[dict[str, str | None], str]] = {
    "wrong secret": ({"AWS_SECRET_ACCESS_KEY": "wrong"}, "PermissionError"),
    "wrong key": ({"AWS_ACCESS_KEY_ID": "nobody"}, "PermissionError"),
    "no credentials": ({"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None}, "NoCredentialsError"),
    "no server": (
        {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "FUSIONKIT_STORAGE_TRIES": "1"},
        "EndpointConnectionError",
    ),
}


@pytest.mark.parametrize(
    ("command", "wrong"),
    [
        ("encode", "wrong secret"),
        pytest.param("encode", "no server", marks=pytest.mark.soak("products")),
        *(("info", wrong) for wrong in UNREACHABLE),
    ],
)
def test_a_place_that_says_no_is_one_clear_error(
    bucket: Any, place: Path, model: Path, fusionkit: Command, wrong: str, command: str
) -> None:
    environment, received = UNREACHABLE[wrong]
    arguments = ["encode", place, "--encoder", model, "--out"] if command == "encode" else ["info"]
    ended = fusionkit(*arguments, bucket / "s", environment=environment, to_the_end=wrong == "no server")
    assert (ended.code, ended.out) == (1, "")
    lines = [line for line in ended.err.splitlines() if not line.startswith(("columns: ", "first example: "))]
    assert len(lines) == 3, ended.err
    assert lines[0].startswith(f"fusionkit: cannot use s3://{bucket.name}/s")
    assert lines[1].startswith(f"  received: {received}: ")
    assert lines[2].startswith("  remedy:   check the address, the credentials (for s3: AWS_ACCESS_KEY_ID, ")
    assert not any(bucket.folder.iterdir())


def test_a_bucket_that_does_not_exist_is_one_clear_error(
    server: Any, place: Path, model: Path, fusionkit: Command
) -> None:
    encode = fusionkit("encode", place, "--encoder", model, "--out", "s3://nowhere/s")
    assert encode.code == 1
    assert "fusionkit: cannot use s3://nowhere/s\n" in encode.err
    assert "The specified bucket does not exist" in encode.err
    assert "Traceback" not in encode.err
    info = fusionkit("info", "s3://nowhere/s")
    told = "fusionkit: s3://nowhere/s is neither a store nor a folder of runs"
    assert (info.code, info.err.splitlines()[0]) == (2, told)
    assert not (server.root / "nowhere").exists()


ADDRESSES = {
    "foo://bucket/s": "no such kind of address: foo://bucket/s",
    "s3://bucket": "an address without a name: s3://bucket",
    "s3://bucket/a*": "no address of one place: s3://bucket/a*",
    "gs://bucket/s": "addresses of gs:// need a package that is not installed",
}


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address_that_is_none_is_wrong_use(place: Path, model: Path, fusionkit: Command, address: str) -> None:
    for arguments in (["encode", place, "--encoder", model, "--out", address], ["info", address]):
        ended = fusionkit(*arguments, without=("gcsfs", "obstore", "obstore.fsspec"))
        assert (ended.code, ended.out) == (2, "")
        assert ended.err.startswith(f"fusionkit: {ADDRESSES[address]}\n")
        assert "Traceback" not in ended.err
    if address.startswith("gs://"):
        assert "  remedy:   pip install 'fusionkit[gs]'" in ended.err


def test_runs_are_not_kept_there(fusionkit: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path would make a folder called "s3:"."""
    for arguments in (["fit", tmp_path, "--out", "s3://bucket/runs"], ["results", "s3://bucket/runs"]):
        ended = fusionkit(*arguments)
        assert ended.code == 2
        what = "fusionkit: runs, reports and exports are kept on a local disk"
        assert ended.err.startswith(f"{what}\n  expected: a local path\n  received: s3://bucket/runs\n")


def test_a_cache_without_a_size_is_wrong_use(copied: Callable[..., Any], local: Any, fusionkit: Command) -> None:
    ended = fusionkit("info", copied(local()), environment={"FUSIONKIT_CACHE": "plenty"})
    assert ended.code == 2
    wrong = "FUSIONKIT_CACHE is no size\n  expected: like 50GB, or 0\n  received: plenty"
    assert ended.err == f"fusionkit: {wrong}\n  remedy:   correct FUSIONKIT_CACHE, or unset it\n"


@pytest.mark.soak("products")
def test_the_installed_command_ends_without_a_word_on_standard_error(copied: Callable[..., Any], local: Any) -> None:
    """As users run it: nothing that an event loop says when Python ends."""
    command = [sys.executable, "-m", "fusionkit", "verify", str(copied(local())), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert json.loads(done.stdout)["faults"] == {}
    assert done.stderr == f"verifying: {json.loads(done.stdout)['files']} files\n"
