"""A real S3 server on loopback, buckets on it, and the tiny encoder of the fault tests.

An object is a file below the bucket's folder, so a store there is compared like a local one. Tests change
objects only through the server, because it caches its folders for a while.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partialmethod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fsspec.asyn import AsyncFileSystem
from upath import UPath

from fusionkit.encode import EncodeReport, encode, lock
from fusionkit.encoder import Encoder
from fusionkit.io import places
from fusionkit.io.places import Place, place_of
from fusionkit.sources import Source, guess_columns
from fusionkit.specs import EncodeSpec
from fusionkit.store import layout


def _load(path: Path) -> Any:
    """Load a file among the tests as a module; the tests are no package."""
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


HERE = Path(__file__).parent
serve, proxy = _load(HERE / "rclone.py").serve, _load(HERE / "proxy.py").proxy
_faults = _load(HERE.parent / "faults" / "conftest.py")
model, encoder, source, content = _faults.model, _faults.encoder, _faults.source, _faults.content


@pytest.fixture(scope="session", autouse=True)
def _one_write_at_a_time() -> Iterator[None]:
    """Write one object at a time: of several at once to one folder, rclone's server sometimes never answers one."""
    several = AsyncFileSystem._put
    AsyncFileSystem._put = partialmethod(several, batch_size=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(places, "WRITES_AT_ONCE", 1)
        yield
    AsyncFileSystem._put = several


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source's folder: 36 and 8 examples of 1 to 11 words; words of 4 letters have a tag of their own."""
    folder = tmp_path_factory.mktemp("source") / "letters"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for split, count in {"train": 36, "validation": 8}.items():
        rows = [
            ["".join(rng.choice(list("abcdefgh"), rng.integers(1, 5))) for _ in range(rng.integers(1, 12))]
            for _ in range(count)
        ]
        lines = [{"tokens": row, "tags": ["B-LONG" if len(word) == 4 else "O" for word in row]} for row in rows]
        (folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return folder


@dataclass(frozen=True)
class Bucket:
    """An empty bucket that only one test uses.

    Attributes:
        folder: where the server keeps its objects.
    """

    name: str
    folder: Path

    def address(self, name: str) -> str:
        return f"s3://{self.name}/{name}"

    def __truediv__(self, name: str) -> UPath:
        found = place_of(self.address(name))
        assert isinstance(found, UPath)
        return found


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One server for all tests, since a process keeps the first environment that its S3 clients saw."""
    with serve(tmp_path_factory.mktemp("buckets")) as running, pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN"):
            patch.delenv(name, raising=False)
        for name, value in running.environment.items():
            patch.setenv(name, value)
        yield running


@dataclass(frozen=True)
class Doomed:
    """A server that only one test uses.

    Attributes:
        out: a finished store on the server. begun: a place for another store. stop: ends the server.
    """

    out: UPath
    begun: UPath
    stop: Callable[[], None]


@pytest.fixture
def between(server: Any) -> Iterator[Any]:
    """A proxy that passes this process's requests on to the server and can be told to fail."""
    with proxy(int(server.environment["AWS_ENDPOINT_URL"].rpartition(":")[2])) as running:
        yield running


@pytest.fixture
def doomed(tmp_path: Path, local: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Doomed]:
    """A server given by options, so that this process's other S3 clients stay as they are; nothing is retried."""
    (tmp_path / "buckets" / "bucket").mkdir(parents=True)
    with ExitStack() as stack:
        environment = stack.enter_context(serve(tmp_path / "buckets")).environment
        options = {
            "endpoint_url": environment["AWS_ENDPOINT_URL"], "key": environment["AWS_ACCESS_KEY_ID"],
            "secret": environment["AWS_SECRET_ACCESS_KEY"],
            "config_kwargs": {"retries": {"max_attempts": 1}}, "use_listings_cache": False,
        }  # fmt: skip
        out = put(local(), UPath("s3://bucket/s", protocol="s3", **options))
        monkeypatch.setenv("FUSIONKIT_STORAGE_TRIES", "1")
        yield Doomed(out, out.with_name("begun"), stack.close)


_numbers = itertools.count()


@pytest.fixture
def bucket(server: Any) -> Bucket:
    name = f"bucket-{next(_numbers)}"
    made = Bucket(name, server.root / name)
    (made / "s").fs.mkdir(name)
    return made


@pytest.fixture
def copied(bucket: Bucket) -> Callable[..., UPath]:
    """A function that copies a local store into the bucket."""

    def copy(store: Path, name: str = "s") -> UPath:
        return put(store, bucket / name)

    return copy


def put(store: Path, out: UPath) -> UPath:
    names = [path.relative_to(store).as_posix() for path in store.rglob("*") if path.is_file()]
    out.fs.put([str(store / name) for name in names], [(out / name).path for name in names])
    return out


@pytest.fixture(autouse=True)
def _settled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for another process that takes over the same ended lease: there is none."""
    monkeypatch.setattr(lock, "SETTLE_SECONDS", 0.0)


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this test's chunks are cached."""
    monkeypatch.setenv("FUSIONKIT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("FUSIONKIT_CACHE", raising=False)
    return tmp_path / "cache" / "chunks"


@dataclass(frozen=True)
class Ended:
    """How a command ended and what it printed; a code below 0 is a signal, a stopped child's code is its process id."""

    code: int
    out: str
    err: str


Command = Callable[..., Ended]


@pytest.fixture(scope="session")
def fusionkit(
    model: Path, server: Any, chunk_bytes: int, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Command]:
    """``fusionkit ARGS`` in a process of its own, in small parts; it can end early as in ``tests/objects/forks.py``."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(Path(__file__).with_name("forks.py")), str(model)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment, bufsize=1) as forks:
        assert forks.stdin is not None
        assert forks.stdout is not None
        assert forks.stdout.readline() == "ready\n"

        def run(
            *arguments: object,
            after: float | None = None,
            moment: str = "",
            end: int = signal.SIGKILL,
            environment: dict[str, str | None] | None = None,
            to_the_end: bool = False,
            without: tuple[str, ...] = (),
        ) -> Ended:
            assert forks.stdin is not None
            assert forks.stdout is not None
            folder = tmp_path_factory.mktemp("command")
            request = {
                "arguments": list(map(str, arguments)), "environment": environment or {}, "folder": str(folder),
                "chunk_bytes": chunk_bytes, "after": after, "moment": moment.split(), "end": int(end),
                "to_the_end": to_the_end, "without": without,
            }  # fmt: skip
            print(json.dumps(request), file=forks.stdin)
            code = int(forks.stdout.readline())
            if end == signal.SIGSTOP:
                stopped.append(code)
            return Ended(code, *((folder / name).read_text(encoding="utf-8") for name in ("out", "err")))

        stopped: list[int] = []
        try:
            yield run
        finally:
            for child in stopped:
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)


@pytest.fixture(scope="session")
def chunk_bytes() -> int:
    """The bytes of 24 rows in float16, which give 10 and 2 parts."""
    return 24 * 3 * 16 * 2


Encoding = Callable[..., EncodeReport]


@pytest.fixture(scope="session")
def encoded(source: Source, encoder: Encoder, chunk_bytes: int) -> Encoding:
    """``encode`` of the source into a place, in many parts; takes keywords of the spec and of ``encode``."""

    def run(out: Place, **how: Any) -> EncodeReport:
        given = {name: how.pop(name) for name in ("overwrite", "progress", "stop", "run_parts") if name in how}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(layout, "CHUNK_BYTES", chunk_bytes)
            return encode(source, guess_columns(source), out, EncodeSpec(**how), encoder, **given)

    return run


@pytest.fixture(scope="session")
def local(encoded: Encoding, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The undisturbed store on the local disk, made once per spec; tests must not change it."""
    made: dict[str, Path] = {}

    def store(**spec: Any) -> Path:
        name = "-".join(map(str, spec.values())) or "whole"
        if name not in made:
            made[name] = tmp_path_factory.mktemp("stores") / name
            assert encoded(made[name], **spec).outcome == "encoded"
        return made[name]

    return store


@pytest.fixture(scope="session")
def assert_same(local: Callable[..., Path], content: Callable[[Path], dict[str, Any]]) -> Callable[..., None]:
    """Asserts that a bucket's store equals the undisturbed local one, object by object, with nothing beside it."""

    def compare(store: Path, **spec: Any) -> None:
        found, expected = content(store), content(local(**spec))
        assert sorted(found) == sorted(expected)
        assert [name for name in found if found[name] != expected[name]] == []
        assert [path.name for path in store.parent.iterdir() if path.name.startswith(".")] == []

    return compare


class Requests(list[tuple[str, str]]):
    """Requests that were sent: each operation with its key or keys. ``peak``: the most that were in flight at once."""

    flying = peak = 0


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Requests:
    """Every request that is sent from here on."""
    sent = Requests()
    client: Any = importlib.import_module("aiobotocore.client").AioBaseClient
    really = client._make_api_call

    async def note(sender: Any, operation: str, given: dict[str, Any]) -> Any:
        keys = [each["Key"] for each in given.get("Delete", {}).get("Objects", [])]
        sent.append((operation, " ".join(keys) or given.get("Key") or given.get("Prefix", "")))
        sent.flying += 1
        sent.peak = max(sent.peak, sent.flying)
        try:
            return await really(sender, operation, given)
        finally:
            sent.flying -= 1

    monkeypatch.setattr(client, "_make_api_call", note)
    return sent
