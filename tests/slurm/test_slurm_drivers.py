"""Drivers that are ended: no job outlives them, and the store goes on to the bytes of an undisturbed one."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusionkit.bundled import travel_desk
from fusionkit.cluster.job_script import DEATH_TIMEOUT
from fusionkit.encode import EncodeReport, encode
from fusionkit.encoder import Encoder
from fusionkit.sources import guess_columns, open_source
from fusionkit.specs import EncodeSpec
from fusionkit.store import is_complete, layout

DRIVER = Path(__file__).with_name("driver.py")
CHUNK_BYTES, TEXTS = 24 * 7 * 384 * 2, 120  # 24 rows of MiniLM a part: some sixty parts
Until = Callable[..., None]
Content = Callable[[Path], dict[str, Any]]
Encoding = Callable[[Path], EncodeReport]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first lines of the bundled corpus."""
    path = tmp_path_factory.mktemp("texts") / "train.jsonl"
    lines = (Path(travel_desk("en")) / "train.jsonl").read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join(lines[:TEXTS]), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def encoded(minilm: Encoder, texts: Path) -> Encoding:
    """The same encode in this process."""

    def run(out: Path) -> EncodeReport:
        source = open_source(str(texts))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(layout, "CHUNK_BYTES", CHUNK_BYTES)
            return encode(source, guess_columns(source), out, EncodeSpec(), minilm)

    return run


@pytest.fixture(scope="module")
def undisturbed(encoded: Encoding, content: Content, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the store is to hold in the end."""
    out = tmp_path_factory.mktemp("undisturbed") / "s"
    assert encoded(out).outcome == "encoded"
    return content(out)


@pytest.mark.soak("slurm")
@pytest.mark.parametrize(
    ("end", "code", "gone_in"),
    [
        pytest.param(signal.SIGTERM, 143, 0.0, id="SIGTERM"),
        pytest.param(signal.SIGINT, 130, 0.0, id="Ctrl-C"),
        pytest.param(signal.SIGKILL, -signal.SIGKILL, DEATH_TIMEOUT, id="kill -9"),
    ],
)
def test_no_job_outlives_its_driver_and_the_store_goes_on(
    empty: Any, folder: Path, texts: Path, until: Until, encoded: Encoding, undisturbed: dict[str, Any],
    content: Content, end: signal.Signals, code: int, gone_in: float,
) -> None:  # fmt: skip
    store, said = folder / "s", folder / "said"
    (folder / "cluster.yaml").write_text("kind: slurm\nwalltime: '00:10:00'\n")
    words = ["encode", texts, "--out", store, "--cluster-config", folder / "cluster.yaml"]
    command = [sys.executable, str(DRIVER), str(CHUNK_BYTES), *map(str, words)]
    with said.open("w") as file, subprocess.Popen(command, stderr=file, stdout=file, cwd=folder) as driver:
        try:
            until(lambda: driver.poll() is not None or len(list((store / "parts").glob("*.json"))) > 3, 120)
            assert list(empty.jobs().values()) == ["RUNNING"], said.read_text()
            driver.send_signal(end)
            assert driver.wait(60) == code, said.read_text()
        finally:
            driver.kill()
    if gone_in:
        until(lambda: empty.jobs() == {}, gone_in + 60)
    assert empty.jobs() == {}
    assert code < 0 or "run the same command" in said.read_text()
    assert len(list((folder / "fusionkit-logs").glob("*.log"))) == 1
    assert not is_complete(store)
    begun = {path.name for path in (store / "parts").glob("*.json")}  # a file that was being written is not whole
    assert encoded(store).outcome == "resumed"
    assert content(store) == undisturbed
    assert begun < {path.name for path in (store / "parts").glob("*.json")}
