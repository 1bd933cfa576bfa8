"""Real work by two real jobs: stores and runs are those of one process, whatever becomes of the jobs.

All of it is the soak's. The gate has cancelled and replaced jobs in test_slurm_workers.py, and the bytes of an encode
by workers in tests/cluster.
"""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fusionkit.bundled import travel_desk
from fusionkit.cluster.encode_workers import EncodeWorkers, open_encode_workers
from fusionkit.cluster.executor import ClusterExecutorFactory
from fusionkit.cluster.settings import ClusterSettings
from fusionkit.encode import encode
from fusionkit.encode.job import NoProgress
from fusionkit.encoder import Encoder
from fusionkit.fit import RunsFolder, expand, fit
from fusionkit.fit.progress import FitProgress
from fusionkit.sources import guess_columns, open_source
from fusionkit.specs import EncodeSpec
from fusionkit.store import layout, open_store

CONLL = Path(__file__).parents[2].parent / "shared" / "data" / "conll2003"
CHUNK_BYTES = 200 * 7 * 384 * 2  # 200 rows of MiniLM
Until = Callable[..., None]
Content = Callable[[Path], dict[str, Any]]
pytestmark = pytest.mark.soak("slurm")


@pytest.fixture(scope="module")
def workers(slurm: Any, tmp_path_factory: pytest.TempPathFactory, until: Until) -> Iterator[EncodeWorkers]:
    logs = tmp_path_factory.mktemp("a folder") / "logs"
    with open_encode_workers(ClusterSettings(kind="slurm", workers=2, log_folder=str(logs)), "auto") as elsewhere:
        assert elsewhere.device == "cpu"  # the GPUs are none
        until(lambda: up(elsewhere) == 2)
        yield elsewhere
    assert slurm.jobs() == {}, "a job outlived its driver"


def up(elsewhere: EncodeWorkers) -> int:
    """The workers that are there."""
    elsewhere.cluster.heal()
    return elsewhere.cluster.count.up


def cancelled(slurm: Any, workers: EncodeWorkers, until: Until) -> Callable[[], None]:
    """What ends one of the jobs, and waits until it is gone."""

    def harm() -> None:
        job = min(slurm.jobs())
        slurm.run("scancel", job)
        until(lambda: job not in slurm.jobs())

    return harm


@pytest.fixture(params=["travel-desk", "conll2003"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "travel-desk":
        shutil.copytree(travel_desk("en"), tmp_path / "desk")
        with (tmp_path / "desk" / "train.jsonl").open("a", encoding="utf-8") as train:
            # Batches of so few sub-tokens had other values with one thread than with two.
            train.writelines(f"{json.dumps(short(words))}\n" for words in (1, 2, 3, 4, 5, 6) * 4)
        return str(tmp_path / "desk")
    if not CONLL.is_dir():
        pytest.skip("the data set conll2003 is not in ../shared/data")
    (tmp_path / "conll").mkdir()
    for split, count in {"train": 120, "validation": 30, "test": 30}.items():
        with (CONLL / f"{split}.txt").open(encoding="utf-8") as lines:
            sentences = itertools.islice(" ".join(f"{line.strip()}\n" for line in lines).split("\n \n"), count)
            (tmp_path / "conll" / f"{split}.txt").write_text("\n\n".join(s.replace("\n ", "\n") for s in sentences))
    return str(tmp_path / "conll")


def short(words: int) -> dict[str, Any]:
    """An example of so many words."""
    tokens = ["please", "find", "me", "one", "cheap", "flight"][:words]
    row = {"id": f"short-{words}", "text": " ".join(tokens), "tokens": tokens, "slots": ["O"] * words}
    return {**row, "intent": "book_flight"}


class Meanwhile(NoProgress):
    """Watches an encode, and does something when it has advanced so often."""

    def __init__(self, often: int, do: Callable[[], None]) -> None:
        self.left, self.do = often, do

    def advance(self, count: int) -> None:
        self.left -= 1
        if self.left == 0:
            self.do()


def test_a_job_that_is_cancelled_in_the_middle_leaves_the_bytes_of_one_process(
    slurm: Any, workers: EncodeWorkers, minilm: Encoder, source: str, content: Content,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, until: Until,
) -> None:  # fmt: skip
    monkeypatch.setattr(layout, "CHUNK_BYTES", CHUNK_BYTES)
    elsewhere, opened = workers, open_source(source)
    lost = elsewhere.cluster.count.lost
    for out, runner, watch in (
        (tmp_path / "serial", None, NoProgress()),
        (
            tmp_path / "cluster",
            elsewhere.parts(minilm, lambda: False, lambda _: None),
            Meanwhile(3, cancelled(slurm, workers, until)),
        ),
    ):
        report = encode(
            opened, guess_columns(opened), out, EncodeSpec(), minilm, run_parts=runner, progress=watch,
            device=elsewhere.device,
        )  # fmt: skip
        assert report.outcome == "encoded"
    serial = content(tmp_path / "serial")
    assert sum(name.startswith("parts/") for name in serial) >= 12
    assert content(tmp_path / "cluster") == serial
    assert elsewhere.cluster.count.lost > lost
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


class Watch(FitProgress):
    """Watches a sweep, and does something at its first epoch."""

    def __init__(self, do: Callable[[], None] = lambda: None) -> None:
        self.do = [do]

    def epoch(self, work: float) -> None:
        for do in self.do:
            do()
        self.do = []


def test_a_sweep_whose_job_is_cancelled_in_the_middle_has_the_results_of_one_process(
    slurm: Any, workers: EncodeWorkers, minilm: Encoder, tmp_path: Path, until: Until
) -> None:
    opened = open_source(str(travel_desk("en")))
    encode(opened, guess_columns(opened), tmp_path / "s", EncodeSpec(rows="mean"), minilm)
    store = open_store(tmp_path / "s")
    specs = expand(
        store, task="classification", label="intent", fusions=("last", "linear", "attention", "concat"), seeds=2,
        epochs=(8,),
    )  # fmt: skip
    cluster, harm = workers.cluster, cancelled(slurm, workers, until)
    lost, elsewhere = cluster.count.lost, ClusterExecutorFactory(cluster, workers.settings)
    shared = fit(store, specs, RunsFolder(tmp_path / "shared"), Watch(harm), workers=2, cluster=lambda: elsewhere)
    alone = fit(store, specs, RunsFolder(tmp_path / "alone"))
    assert [record["status"] for record in shared] == ["finished"] * len(specs)
    assert cluster.count.lost > lost
    for one, other in zip(shared, alone, strict=True):
        assert one["spec"] == other["spec"]
        assert one["scores"] == other["scores"]
    rows = [RunsFolder(tmp_path / name).path / "results.parquet" for name in ("shared", "alone")]
    assert rows[0].exists()
    assert rows[1].exists()


def test_a_job_that_is_out_of_time_is_replaced(slurm: Any, workers: EncodeWorkers, until: Until) -> None:
    until(lambda: up(workers) == 2)
    doomed, lost = max(slurm.jobs()), workers.cluster.count.lost
    slurm.run("scontrol", "update", f"jobid={doomed}", "endtime=now")
    until(lambda: doomed not in slurm.jobs(), 180)  # Slurm looks for such jobs every half minute
    assert "TIMEOUT" in slurm.run("scontrol", "show", "job", doomed)
    until(lambda: up(workers) == 2)
    assert len(slurm.jobs()) == 2
    assert workers.cluster.count.lost > lost
