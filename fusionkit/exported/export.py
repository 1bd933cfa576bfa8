"""A run written out as a folder that stands alone: aside first, then renamed."""

from __future__ import annotations

import shutil
from pathlib import Path

from fusionkit.errors import UsageError
from fusionkit.exported.config import is_export
from fusionkit.exported.head import FusedHead
from fusionkit.files import aside_of, disk_errors, sync_folder, sync_tree

REMEDY = "free some space and run the same command again"


def export_run(run: str | Path, to: str | Path, *, overwrite: bool = False) -> FusedHead:
    """Write a finished run's head with its config and model card into a folder.

    Args:
        run: its folder, or the beginning of it. to: a new place or an empty folder.
        overwrite: replace the export that is there; nothing else is ever replaced.

    Raises:
        UsageError: no such run, several of them, or ``to`` holds something. StoreError: the run is damaged.
    """
    folder = Path(to).expanduser().absolute()
    _refuse_occupied(folder, overwrite)
    head = FusedHead.from_run(run)
    aside, before = aside_of(folder), aside_of(folder, "before")
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
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    ours = folder.is_dir() and is_export(folder)
    if not (ours and overwrite):
        raise UsageError(
            f"{folder} holds {'another export' if ours else 'something else'}",
            expected="a new place or an empty folder",
            received="an exported head" if ours else "a file" if folder.is_file() else "a folder with other files",
            remedy="replace it with --overwrite, or choose another --to" if ours else "choose another --to",
        )
