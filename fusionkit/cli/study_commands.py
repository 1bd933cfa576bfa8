"""The commands ``encode``, ``fit`` and ``results`` as functions that a study calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch

from fusionkit.cli.cluster_options import job_of_worker, workers_of
from fusionkit.cli.comparison_notes import comparison_notes
from fusionkit.cli.console import ProgressBars, log, stop_on_sigterm
from fusionkit.cli.encode_options import load_inputs
from fusionkit.cli.latex import latex
from fusionkit.cli.markdown import markdown
from fusionkit.cli.train_sweep import train
from fusionkit.dataset.mixture import Mix
from fusionkit.encode.job import make_job
from fusionkit.encode.open_plan import is_finished
from fusionkit.encode.pipeline import encode_job
from fusionkit.fit import RunsFolder, forecast
from fusionkit.fit.executor.estimate import Forecast, Measurements
from fusionkit.fit.sweep.blocks import Sweep
from fusionkit.store import Store

if TYPE_CHECKING:
    from fusionkit.cluster import ClusterSettings


@dataclass(frozen=True)
class CliCommands:
    """What the options of ``fusionkit run`` say of who works.

    Attributes:
        settings: of a cluster, None for this machine. workers: processes of a sweep, None for as many as are worth it.
        threads: of a sweep's process. device: of encoder and heads; a cluster trains on CPUs. log_to: names of logs.
    """

    settings: ClusterSettings | None
    workers: int | None
    threads: int
    device: str
    trust_remote_code: bool
    retry_failed: bool
    log_to: Sequence[str]

    def say(self, line: str) -> None:
        """On standard error, with all else that is no result."""
        log().print(line)

    def job(self) -> str:
        """The script that ``--print-job`` shows."""
        return job_of_worker(self.settings)

    def encode(self, options: Mapping[str, Any], store: Path) -> None:
        """As ``fusionkit encode`` does."""
        log().print(f"encoding {options['source']} into {store}")
        with ProgressBars() as bars, stop_on_sigterm() as stop, ExitStack() as stack:
            here = self.device if self.settings is None else "cpu"
            source, columns, spec, encoder = load_inputs(bars.say, **self._loaded(options, here))
            job, run_parts = make_job(source, columns, store, spec, encoder, bars), None
            if self.settings is not None and not is_finished(job):
                cluster_workers = stack.enter_context(workers_of(self.settings, self.device))
                job = replace(job, device=cluster_workers.device)
                run_parts = cluster_workers.parts(encoder, stop, bars.note)
            encode_job(job, run_parts=run_parts, stop=stop)

    def fit(self, store: Store | Mix, sweep: Sweep, runs: Path) -> None:
        """As ``fusionkit fit`` does."""
        log().print(f"fitting {len(sweep.specs)} runs into {runs}")
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            train(
                store, sweep, runs, workers=self.workers, retry_failed=self.retry_failed, settings=self.settings,
                log_to=self.log_to, device=self._heads,
            )  # fmt: skip
        finally:
            torch.set_num_threads(before)

    def notes(self, summary: pd.DataFrame, **choice: str) -> Sequence[str]:
        """As below the table of ``fusionkit results``."""
        return comparison_notes(summary, **choice)

    def tables(self, summary: pd.DataFrame, notes: Sequence[str], across: str | None) -> Mapping[str, str]:
        """Markdown, and the forms of ``fusionkit results --format``."""
        return {
            "md": markdown(summary, notes, across),
            "csv": summary.to_csv(index=False),
            "tex": latex(summary, notes) + "\n",
        }

    def forecast(self, store: Store | Mix, sweep: Sweep, runs: Path, known: Measurements) -> Forecast:
        """As ``fusionkit fit --dry-run`` does."""
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            return forecast(
                store, sweep.specs, RunsFolder(runs), sweep.starts, sweep.draws, self.workers, self.retry_failed,
                self._heads, known,
            )[0]  # fmt: skip
        finally:
            torch.set_num_threads(before)

    @property
    def _heads(self) -> str:
        """Where heads are trained."""
        return self.device if self.settings is None else "cpu"

    def _loaded(self, options: Mapping[str, Any], device: str) -> dict[str, Any]:
        return {**options, "device": device, "trust_remote_code": self.trust_remote_code}
