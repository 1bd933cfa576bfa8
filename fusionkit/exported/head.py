"""A trained head with the model hub's interface, and the export of a run as such a head into a folder."""

from __future__ import annotations

import contextlib
import hashlib
import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from huggingface_hub import ModelCard, ModelHubMixin
from safetensors.torch import save

from fusionkit.errors import StoreError, UsageError
from fusionkit.exported.card import model_card
from fusionkit.exported.config import (
    CARD,
    CONFIG,
    ENCODER,
    INSIDE,
    VERSION,
    WEIGHTS,
    config_of,
    may_replace,
    open_folder,
)
from fusionkit.exported.finding import fetched, refuse_local
from fusionkit.exported.other_runs import scores_of_others
from fusionkit.fit.model.checkpoint import TrainedRun, open_run
from fusionkit.fit.model.fused import FusedModel
from fusionkit.fit.model.joint import JointModel
from fusionkit.io.files import (
    PARTIAL,
    aside_of,
    disk_errors,
    read_json,
    sync_folder,
    sync_tree,
    write_durably,
    write_json,
)
from fusionkit.plural import counted, few
from fusionkit.runs.choice import best_of_each_task, best_run, listed_runs
from fusionkit.runs.find_run import find_run, is_export
from fusionkit.runs.folder import DELTA, RECORD, RunsFolder

if TYPE_CHECKING:
    from fusionkit.encoder import Encoder

BEFORE = "before"  # the end of the name of an export that is being replaced
ABANDONED_SECONDS = 3600  # a partial export that was not written to for so long is a killed process's
REMEDY = "free some space and run the same command again"


class FusedHead(ModelHubMixin):
    """One trained fusion with its head, and the identity of its encoder, without the encoder itself.

    ``fusionkit.load(FOLDER)`` loads it together with its encoder.

    Attributes:
        run: a trained head with its labels, layers and encoder's name. config: the content of ``config.json``.

    Example:
        >>> head = FusedHead.from_run("runs/3f2a")               # doctest: +SKIP
        >>> head.save_pretrained("slots-head")                   # doctest: +SKIP
        >>> FusedHead.from_pretrained("slots-head").labels       # doctest: +SKIP
        ['B-city', 'I-city', 'O']
    """

    # Not None: otherwise the mixin would save the constructor's arguments, weights included, as the config.
    _hub_mixin_config = {}  # noqa: RUF012

    def __init__(self, run: TrainedRun, config: dict[str, Any]) -> None:
        self.run = run
        self.config = config
        self._encoder: Encoder | None = None

    @classmethod
    def from_run(cls, run: str | Path) -> Self:
        """The head of one finished run: its folder or the beginning of it.

        Raises:
            UsageError: no such run, or several. StoreError: its record or weights are damaged.
        """
        folders = find_run(run)
        if len(folders) > 1:
            every = listed_runs(RunsFolder(Path(run).expanduser()).frame())
            raise UsageError(
                f"{run} holds {counted(len(folders), 'run')}:\n{every}",
                expected="one run",
                remedy="name one of them, or take the best by validation: --best, of each task: --best --by task",
            )
        folder, record = folders[0], read_json(folders[0] / RECORD)
        return cls(open_run(folder), config_of(record, **scores_of_others(folder, record)))

    def with_encoder(self, encoder: str | None = None) -> Self:
        """The same head, to be saved with its whole encoder, including what was trained of it.

        Args:
            encoder: where the encoder is now, if it has moved.

        Raises:
            UsageError: its method cannot be part of the encoder's weights, or it is an export that names a folder of
                this machine, and no ``encoder`` is given. EncoderError: the encoder cannot be loaded.
        """
        from fusionkit.tuning.trained import whole_encoder  # loads transformers

        if encoder is None and is_export(self.run.folder):
            refuse_local(self.run, self.config["encoder_kind"], None)
        head = type(self)(self.run, self.config)
        head._encoder = whole_encoder(self.run, encoder)
        return head

    @property
    def model(self) -> FusedModel | JointModel:
        """Fusion, pool and head, in evaluation mode; for a run of several tasks all its heads."""
        return self.run.whole

    @property
    def labels(self) -> list[str]:
        """Class names in the order of the scores; empty for a regression; of several tasks the first's."""
        return self.run.labels

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        force_download: bool = False,
        token: str | bool | None = None,
        cache_dir: str | Path | None = None,
        local_files_only: bool = False,
        revision: str | None = None,
        trust_modules: Sequence[str] = (),
        **model_kwargs: Any,
    ) -> Self:
        """The head in an exported folder or a hub repository.

        Args:
            trust_modules: modules that may be imported for a fusion or head that is not fusionkit's own.

        Raises:
            UsageError: there is no such folder or repository, it holds no head, or needs code that is not trusted.
            StoreError: it is damaged, or of a newer format. FusionkitError: the hub cannot be reached.
        """
        if model_kwargs:
            raise TypeError(f"unexpected arguments: {', '.join(model_kwargs)}")
        folder = Path(pretrained_model_name_or_path).expanduser()
        if not folder.is_dir():
            folder = fetched(
                str(pretrained_model_name_or_path),
                revision=revision,
                force_download=force_download,
                token=token,
                cache_dir=cache_dir,
                local_files_only=local_files_only,
            )
        return cls(*open_folder(folder, trust_modules))

    def save_pretrained(self, save_directory: str | Path, **options: Any) -> str | None:
        """Write config, weights and model card, replacing those of an export that is already there, file by file:
        :func:`export_run` replaces all or nothing.

        Args:
            options: the mixin's: ``model_card_kwargs`` (more of the card's front matter, such as ``license``),
                ``push_to_hub``, ``repo_id``.

        Raises:
            FusionkitError: the place cannot be written, or the disk is full.
        """
        folder = Path(save_directory)
        with disk_errors(folder):
            if may_replace(folder):
                self._remove_others(folder)
            return super().save_pretrained(folder, **options)

    def _remove_others(self, folder: Path) -> None:
        """Remove what another head's export would leave: its card, which the mixin keeps, its delta and its encoder."""
        (folder / CARD).unlink(missing_ok=True)
        if self.run.delta is None or self._encoder is not None:
            (folder / DELTA).unlink(missing_ok=True)
        if Path(self.config["encoder"]) != (folder / ENCODER).resolve():  # not loaded from here, with its encoder
            shutil.rmtree(folder / ENCODER, ignore_errors=True)

    def _save_pretrained(self, save_directory: Path) -> None:
        """Config and weights; the mixin calls this and then writes the card."""
        content = save({name: value.cpu().contiguous() for name, value in self.model.state_dict().items()})
        config = {**self.config, "weights_sha256": hashlib.sha256(content).hexdigest()}
        write_durably(save_directory / WEIGHTS, content)
        if self._encoder is not None:
            self.config = config = _saved_whole(self._encoder, config, save_directory / ENCODER)  # the card reads it
        elif config["encoder_kind"] == INSIDE:
            source, target = Path(config["encoder"]), save_directory / ENCODER
            if not source.is_dir():
                raise StoreError(
                    f"the encoder of this head is gone: {source}",
                    expected="the folder that it was loaded from",
                    remedy="put it back, or export the run again with --with-encoder",
                )
            if source != target.resolve():
                for file in filter(Path.is_file, source.rglob("*")):  # not copytree, whose error has no code
                    (copy := target / file.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(file, copy)
            config["encoder"] = ENCODER
        elif self.run.delta is not None:
            from fusionkit.tuning.trained import delta_bytes

            write_durably(save_directory / DELTA, delta_bytes(self.run))
        write_json(save_directory / CONFIG, config)

    def generate_model_card(self, *args: Any, **kwargs: Any) -> ModelCard:
        """The card that is written; ``kwargs`` are further front matter, such as ``license="mit"``."""
        inside = self.config["encoder_kind"] == INSIDE
        return model_card({**self.config, "encoder": ENCODER} if inside else self.config, **kwargs)


def _saved_whole(encoder: Encoder, config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Save an encoder as transformers does; returns the config of a head over the saved encoder."""
    from fusionkit.encoder import load_encoder

    encoder.model.save_pretrained(folder)
    encoder.tokenizer.save_pretrained(folder)
    encoding = config["encoding"]
    loaded = load_encoder(str(folder), device="cpu", words=encoding["columns"]["tokens"] is not None)
    saved = {"encoder": loaded.identity, "compute_dtype": "float32"}
    kept = {name: value for name, value in config.items() if name != "delta_sha256"}
    if "others" in kept:  # tasks over stores of their own tell their encoder each
        kept["others"] = {
            name: {**task, "encoding": {**task["encoding"], **saved}} if "encoding" in task else task
            for name, task in kept["others"].items()
        }
    inside = {"encoder": ENCODER, "encoder_kind": INSIDE, "encoding": {**encoding, **saved}}
    return {**kept, "format_version": VERSION, **inside}


def _recover(folder: Path) -> None:
    """Restore the export that a killed process had moved aside, or remove it if the new export is there; remove what a
    killed process had begun to write.
    """
    # The whole name, as :func:`aside_of` makes it: what an export to v1.1 left begins like what one to v1 left.
    own = re.compile(rf"\.{re.escape(folder.name)}\.\d+-[0-9a-f]+\.({BEFORE}|{PARTIAL})")
    with contextlib.suppress(OSError):  # there is no such folder yet; or another process does the same
        for left in folder.parent.iterdir():
            found = own.fullmatch(left.name)
            if found is None:
                continue
            if found[1] == BEFORE:
                shutil.rmtree(left) if folder.exists() else left.replace(folder)
            elif time.time() - left.stat().st_mtime > ABANDONED_SECONDS:
                shutil.rmtree(left)


def export_run(
    run: str | Path,
    to: str | Path,
    *,
    overwrite: bool = False,
    best: bool = False,
    with_encoder: bool = False,
) -> FusedHead:
    """Write a finished run's head with its config and model card into a folder. It is written to a temporary folder,
    which is then renamed.

    Args:
        run: the run's folder or the beginning of it; with ``best`` a folder of runs of one task.
        to: a new place or an empty folder.
        overwrite: replace the export that is there; a folder with other files, or ``.git``, is not replaced. best: take
            the run that :func:`fusionkit.runs.choice.best_run` chooses by validation. with_encoder: write the whole
            encoder too, as a model that transformers loads, with what was trained of it.

    Raises:
        UsageError: no such run, several of them, or ``to`` holds something or is the current folder. StoreError: the
            run is damaged.
    """
    folder = Path(to).expanduser().resolve()  # a link stays, and its target is replaced
    if Path.cwd().is_relative_to(folder):
        raise UsageError(
            f"{to} holds the current folder, which would be removed",
            expected="another folder",
            received=str(folder),
            remedy="name a folder in it, or leave it first",
        )
    _refuse_occupied(folder, overwrite)
    if best:
        runs = RunsFolder(Path(run).expanduser())
        run = runs.path / best_run(runs.frame())
    head = FusedHead.from_run(run)
    head = head.with_encoder() if with_encoder else head
    aside, before = aside_of(folder), aside_of(folder, BEFORE)
    with disk_errors(folder, REMEDY):
        try:
            head.save_pretrained(aside)
            sync_tree(aside)
            if folder.exists():
                folder.replace(before)
            aside.replace(folder)
            sync_folder(folder.parent)
        except BaseException:
            if before.exists() and not folder.exists():
                before.replace(folder)
            raise
        finally:
            for left in (aside, before):
                shutil.rmtree(left, ignore_errors=True)
    return head


def _refuse_occupied(folder: Path, overwrite: bool) -> None:
    """Raise UsageError if a folder holds something that must not be replaced."""
    _recover(folder)
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    ours = folder.is_dir() and may_replace(folder)
    if not (ours and overwrite):
        raise UsageError(
            f"{folder} holds {'another export' if ours else 'something else'}",
            expected="a new place or an empty folder",
            received="an exported head" if ours else "a file" if folder.is_file() else "a folder with other files",
            remedy="replace it with --overwrite, or choose another --to" if ours else "choose another --to",
        )
    if strange := sorted({each.name for each in folder.iterdir()} - {CONFIG, WEIGHTS, DELTA, CARD, ENCODER}):
        raise UsageError(
            f"{folder} holds files that do not belong to the export: --overwrite would remove them",
            expected="the export's own files alone",
            received=few(strange, 3),
            remedy="move them elsewhere, or choose another --to; nothing was touched",
        )


def export_best_of_each(
    runs: str | Path, to: str | Path, *, overwrite: bool = False, with_encoder: bool = False
) -> dict[str, FusedHead]:
    """Export the best head by validation of each task in a folder of runs, into a subfolder of ``to`` per task.

    Args:
        overwrite, with_encoder: as in :func:`export_run`.

    Returns:
        each head by the name of its subfolder. Errors as in :func:`export_run`; all subfolders are checked before the
        first is written.
    """
    folder, target = RunsFolder(Path(runs).expanduser()), Path(to).expanduser().absolute()
    chosen = best_of_each_task(folder.frame())
    for name in chosen:
        _refuse_occupied(target / name, overwrite)
    return {
        name: export_run(folder.path / digest, target / name, overwrite=overwrite, with_encoder=with_encoder)
        for name, digest in chosen.items()
    }
