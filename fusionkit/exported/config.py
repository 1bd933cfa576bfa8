"""The files of an exported head.

FOLDER/config.json        ``format``, ``format_version``, and the part of the run's record that its use needs:
                          spec, labels, layers, rows, the encoder by name and hashes, scores
FOLDER/model.safetensors  fusion and head
FOLDER/delta.safetensors  what a method trained of the encoder, if the run has one
FOLDER/encoder/           on request, instead of the delta: the whole encoder with it, as transformers loads it
FOLDER/README.md          the model card

No other file is read. If the encoder was a folder, only the folder's name is kept: a path of one machine is useless on
another, and private.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fusionkit.errors import StoreError, UsageError
from fusionkit.fit.model.own_code import refuse_untrusted
from fusionkit.fit.model.record_shape import FIELDS, misfit, one_of
from fusionkit.io.files import damaged, read_json
from fusionkit.runs.find_run import EXPORTED
from fusionkit.runs.record import COSTS
from fusionkit.specs import parse_untrained, untrained_name

if TYPE_CHECKING:
    from fusionkit.fit.model.checkpoint import TrainedRun

CONFIG, WEIGHTS = EXPORTED
CARD = "README.md"
FORMAT, VERSION = "fusionkit-head", 3
ENCODER, INSIDE = "encoder", "inside"  # a whole encoder in the folder
BUNDLED = "minilm"
# Not exported from a run's record: the training examples' ids, also those of each store and of each task, the loss by
# epoch and this machine's times.
LEFT_OUT = ("draw", "curve", "seconds", "epoch_seconds", "error", "status", *COSTS)
AGAIN = "export the run again, or download the head again"
ENCODER_KINDS = ("bundled", "hub", "folder", INSIDE)


def config_of(record: dict[str, Any], **beside: dict[str, Any] | None) -> dict[str, Any]:
    """The content of ``config.json``, made from a run's record and from the runs beside it: the scores ``over_seeds``
    and those of the ``floors``.
    """
    name, revision = record["encoder"], record["encoding"]["encoder"].get("revision")
    reference, seed = parse_untrained(name)
    # A hub id is loaded by its commit, so it always has a revision.
    kind = "bundled" if reference == BUNDLED else "hub" if revision is not None else "folder"
    kept = {key: value for key, value in record.items() if key not in LEFT_OUT}
    if parts := kept.get("parts"):
        kept["parts"] = [_without_draw(part) for part in parts]
    if others := kept.get("others"):
        kept["others"] = {task: _without_draw(each) for task, each in others.items()}
    shown = name
    if kind == "folder":
        shown = Path(reference).expanduser().resolve().name
        shown = shown if seed is None else untrained_name(shown, seed)
    # Heads over a frozen encoder keep the first format with one task, and the second with several.
    version = VERSION if record.get("delta_sha256") else 2 if record.get("others") else 1
    found = {"format": FORMAT, "format_version": version, **kept, "encoder": shown, "encoder_kind": kind}
    return found | {name: value for name, value in beside.items() if value is not None}


def _without_draw(told: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in told.items() if key != "draw"}


def may_replace(folder: Path) -> bool:
    """True for a folder whose ``config.json`` says that it is of an exported head: an export replaces nothing else."""
    try:
        return (folder / CONFIG).is_file() and read_json(folder / CONFIG).get("format") == FORMAT
    except StoreError:
        return False


def open_folder(folder: Path, trusted: Iterable[str] = ()) -> tuple[TrainedRun, dict[str, Any]]:
    """The head in a folder, with its ``config.json``.

    Args:
        trusted: modules that may be imported for it, besides fusionkit's own.

    Raises:
        UsageError: the folder holds something else, or needs code that is not trusted.
        StoreError: it is damaged, or of a newer format.
    """
    from fusionkit.fit.model.checkpoint import run_of  # loads torch

    place = folder / CONFIG
    if not place.is_file():
        raise damaged(folder, f"{CONFIG}, {WEIGHTS} and {CARD}", f"no {CONFIG}", AGAIN)
    config = read_json(place)
    if config.get("format") != FORMAT:
        raise UsageError(
            f"{folder} is no head of fusionkit's",
            expected=f"a {CONFIG} whose format is {FORMAT!r}",
            received=f"format {config.get('format')!r}",
            remedy=f"give a folder that `fusionkit export` wrote; a run must have no {CONFIG} in its folder",
        )
    version = config.get("format_version")
    if not isinstance(version, int) or version > VERSION:
        raise StoreError(
            f"{place} is of a format that this fusionkit does not know",
            expected=f"format_version {VERSION} or lower",
            received=f"format_version {version!r}",
            remedy="install a newer fusionkit",
        )
    if (wrong := misfit(config, {**FIELDS, "encoder_kind": one_of(ENCODER_KINDS)})) is not None:
        raise damaged(place, *wrong, AGAIN)
    if config["encoder_kind"] == INSIDE:
        config["encoder"] = str((folder / ENCODER).resolve())
    spec = config["spec"]
    refuse_untrusted(spec["fusion"], spec["head"], spec["method"], tuple(trusted), place)
    return run_of(config, place, folder / WEIGHTS, AGAIN), config
