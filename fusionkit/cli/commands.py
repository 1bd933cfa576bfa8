"""Encoding and training as functions, for a study; ``fusionkit fit`` and ``fusionkit demo`` train by them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fusionkit.cli.console import log, sigterm_raises
from fusionkit.cli.encode import encode_into
from fusionkit.cli.tables.sweep_table import SweepTable
from fusionkit.dataset.stores import Stores
from fusionkit.fit import RunsFolder, fit, forecast
from fusionkit.fit.executor.cost import CostModel
from fusionkit.fit.executor.estimate import Forecast, Measurements
from fusionkit.fit.executor.prepare import counts_as_done
from fusionkit.fit.sweep.blocks import Sweep
from fusionkit.logs import Logs
from fusionkit.plural import counted
from fusionkit.runs.record import is_floor
from fusionkit.specs import RunSpec

if TYPE_CHECKING:
    from fusionkit.cluster import ClusterSettings
    from fusionkit.encoder import Encoder
    from fusionkit.fit.executor.worker_pool import ExecutorFactory


@dataclass(frozen=True)
class CliCommands:
    """The commands of a study, with the options of the command line (:class:`fusionkit.study.steps.Commands`).

    Attributes:
        settings: the settings of a cluster, None for this machine. workers: processes of a sweep, None for as many as
            are worth it. threads: CPU threads per process of a sweep. device: of encoder and heads; each worker of a
            cluster has its own.
        log_to: names of logs. save_every: how often runs that train through the encoder save their state.
    """

    settings: ClusterSettings | None
    workers: int | None
    threads: int
    device: str
    retry_failed: bool
    log_to: Sequence[str]
    trust_remote_code: bool = False
    save_every: str = "2m"

    def say(self, line: str) -> None:
        log().print(line)

    def encode(self, options: Mapping[str, Any], store: Path) -> None:
        """Encode a source, like ``fusionkit encode``."""
        self.say(f"encoding {options['source']} into {store}")
        encode_into(store, {**options, "trust_remote_code": self.trust_remote_code}, self.device, self.settings)

    def sample(self, options: Mapping[str, Any], store: Path) -> None:
        """Encode a sample of a source in this process; the loaded encoder is kept for the next sample."""
        options = {**options, "trust_remote_code": self.trust_remote_code}
        # A cluster's device is for its workers, which do not see this folder.
        device = self.device if self.settings is None else "auto"
        encode_into(store, options, device, None, load=self._load_encoder)

    @cached_property
    def _load_encoder(self) -> Callable[..., Encoder]:
        from fusionkit.encoder import load_encoder

        return lru_cache(maxsize=1)(load_encoder)

    def fit(self, store: Stores, sweep: Sweep, runs: Path) -> None:
        """Train a sweep, like ``fusionkit fit``."""
        self.say(f"fitting {counted(len(sweep.specs), 'run')} into {runs}")
        self.train(store, sweep, runs)

    def train(self, store: Stores, sweep: Sweep, runs: Path) -> list[dict[str, Any]]:
        """Train the missing runs, with a table of the progress and with logs; returns the records of all runs of the
        sweep.
        """
        folder, console = RunsFolder(runs), log()
        found = [record for spec in sweep.specs if (record := folder.record(spec)) is not None]
        there = [record for record in found if counts_as_done(record, self.retry_failed, sweep.halving)]
        heads = [spec for spec in sweep.specs if not spec.is_floor]
        missing = len(heads) - sum(not is_floor(record) for record in there)
        logs = Logs(self.log_to, runs, console.print)
        with (
            self._own_threads(),
            sigterm_raises(),
            SweepTable(sweep.specs, there, console, logs.log) as progress,
            ExitStack() as stack,
        ):
            cluster = None if self.settings is None else partial(self._cluster, self.settings, missing, progress, stack)
            for note in sweep.notes if len(there) < len(sweep.specs) else ():
                progress.say(note)
            logs.catch_up(there)
            records = fit(
                store, sweep.specs, folder, progress, sweep.starts, sweep.draws, self.workers, self.retry_failed,
                cluster, self._heads, sweep.halving, self.save_every, self.trust_remote_code,
            )  # fmt: skip
            logs.catch_up(records)  # runs that another process finished in between
            logs.close()
        return records

    def _cluster(
        self, settings: ClusterSettings, missing: int, progress: SweepTable, stack: ExitStack
    ) -> ExecutorFactory:
        """Open the cluster for a number of missing runs, until ``stack`` ends."""
        from fusionkit.cluster import open_cluster
        from fusionkit.cluster.executor import ClusterExecutorFactory
        from fusionkit.cluster.settings import for_sweep

        settings = for_sweep(settings, self.threads, missing)
        workers = stack.enter_context(open_cluster(settings))
        return ClusterExecutorFactory(workers, settings, progress.note, self.device, self.threads)

    def forecast(
        self, store: Stores, sweep: Sweep, runs: Path, known: Measurements | None = None
    ) -> tuple[Forecast, list[str]]:
        """The forecast of ``fusionkit fit --dry-run``, and the notes that ``fit`` would print."""
        with self._own_threads():
            found, notes = forecast(
                store, sweep.specs, RunsFolder(runs), sweep.starts, sweep.draws, self.workers, self.retry_failed,
                self._heads, known, sweep.halving, self.trust_remote_code,
            )  # fmt: skip
        return found, [*(sweep.notes if found.there < found.runs else ()), *notes]

    def measure(self, specs: Sequence[RunSpec], cost: CostModel, known: Measurements) -> None:
        """Train samples with as many threads as a sweep's process has."""
        with self._own_threads():
            known.sample(specs, cost)

    @property
    def _heads(self) -> str:
        return self.device if self.settings is None else "cpu"

    @contextmanager
    def _own_threads(self) -> Iterator[None]:
        # For products this small a second thread gains little, and loses much as soon as anything else runs.
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)
