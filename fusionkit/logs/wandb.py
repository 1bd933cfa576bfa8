"""Weights & Biases: one W&B run for each run, in RUNS/logs/wandb and offline, unless WANDB_DIR and WANDB_MODE differ.

The project is ``fusionkit`` or WANDB_PROJECT, the group is the folder of runs. `wandb sync` sends runs that were logged
offline.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import wandb

from fusionkit.io.files import write_durably
from fusionkit.logs.entry import Entry

LONGEST = 64  # characters of a tag


class Wandb:
    """Logs by wandb's client; a file RUNS/logs/wandb/{digest} has the stamp of a record logged completely."""

    def __init__(self, folder: Path, group: str) -> None:
        self._folder, self._group = folder, group
        self._place = Path(os.environ.get("WANDB_DIR") or folder)
        self._mode: Any = os.environ.get("WANDB_MODE", "offline")
        sync = f"`wandb sync {self._place / 'wandb'}/offline-run-*` sends them"
        self.where = sync if self._mode == "offline" else f"mode {self._mode}"

    def has(self, entry: Entry) -> bool:
        return entry.is_stamped(self._folder / entry.digest)

    def log(self, entry: Entry) -> None:
        name = f"{entry.digest}-{entry.stamp[:8]}"
        self._place.mkdir(parents=True, exist_ok=True)
        for left in (self._place / "wandb").glob(f"offline-run-*-{entry.digest}-*"):
            shutil.rmtree(left)  # interrupted, or of an earlier record
        run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "fusionkit"),
            group=self._group,
            dir=self._place,
            mode=self._mode,
            id=name,
            name=entry.name,
            config=entry.parameters,
            tags=[f"{kind}:{value}"[:LONGEST] for kind, value in entry.tags.items() if kind != "error"],
            resume="allow",  # an online run of this name was interrupted
            reinit="create_new",
            # The run has ended before: this process's output, code and load are not part of it.
            settings=wandb.Settings(
                silent=True, console="off", disable_git=True, save_code=False, x_disable_stats=True, x_disable_meta=True
            ),
        )
        for epoch, _, values in entry.curve:
            run.log(values, step=epoch)
        weights = {f"layer_weight/{layer}": weight for layer, weight in entry.layer_weights.items()}
        run.summary.update({**entry.scores, **weights, "status": entry.tags["status"], "ended": entry.ended})
        run.finish(exit_code=1 if entry.tags["status"] == "failed" else 0)
        write_durably(self._folder / entry.digest, entry.stamp.encode())

    def close(self) -> None:
        """End the service that wandb started."""
        wandb.teardown()


def open_logger(folder: Path, runs: Path) -> Wandb:
    return Wandb(folder, runs.resolve().name)
