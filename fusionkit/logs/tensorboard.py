"""TensorBoard: one event file per run, in RUNS/logs/tensorboard/{digest}."""

from __future__ import annotations

import shutil
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from fusionkit.io.files import sync_tree
from fusionkit.logs.entry import Entry

STAMP = "record"  # a file beside the events with the stamp of their record


class TensorBoard:
    """Writes each run to a temporary folder and renames it, so that a run's folder is always complete."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.where = f"tensorboard --logdir '{folder}'"

    def has(self, entry: Entry) -> bool:
        return entry.is_stamped(self._folder / entry.digest / STAMP)

    def log(self, entry: Entry) -> None:
        # The name begins with a dot, so that TensorBoard ignores the folder.
        aside, place = self._folder / f".{entry.digest}", self._folder / entry.digest
        shutil.rmtree(aside, ignore_errors=True)
        with SummaryWriter(str(aside)) as writer:
            _write(writer, entry)
        (aside / STAMP).write_text(entry.stamp, encoding="utf-8")
        sync_tree(aside)
        if place.exists():  # an earlier record of the run
            shutil.rmtree(place)
        aside.replace(place)

    def close(self) -> None:
        """Does nothing: no file is open between runs."""


def _write(writer: SummaryWriter, entry: Entry) -> None:
    parameters = {k: v if isinstance(v, (bool, int, float)) else str(v) for k, v in entry.parameters.items()}
    # For the hparams dashboard; `add_hparams` would write a second folder.
    for summary in hparams(parameters | entry.tags, dict.fromkeys(entry.scores, 0)):  # type: ignore[no-untyped-call]
        writer._get_file_writer().add_summary(summary, walltime=entry.began)  # type: ignore[no-untyped-call]
    for epoch, when, values in entry.curve:
        for name, value in values.items():
            writer.add_scalar(name, value, epoch, walltime=when)
    for name, value in entry.scores.items():
        writer.add_scalar(name, value, int(entry.scores.get("best_epoch", 0)), walltime=entry.ended)
    for layer, weight in entry.layer_weights.items():
        writer.add_scalar("layer_weight", weight, layer, walltime=entry.ended)


def open_logger(folder: Path, runs: Path) -> TensorBoard:
    return TensorBoard(folder)
