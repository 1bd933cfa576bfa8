"""Publish a planned store completely or not at all, and remove the files that a killed process left.

On a local disk the plan is written to a draft folder beside ``out``, which is then renamed. Object storage has no
renaming of folders: there the draft is a temporary folder, a marker says that an upload is under way, and ``plan.json``
is uploaded last. In the same order a draft is copied into a local folder that cannot be renamed, such as a mount point.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from upath import UPath

from fusionkit.errors import UsageError
from fusionkit.io.files import disk_errors, sync_folder, sync_tree, write_durably
from fusionkit.io.places import Place, is_file, is_folder, listed, reading, remove_below, sizes_below, upload
from fusionkit.plural import few
from fusionkit.store.presence import FOLDERS, LM_HEAD, MANIFEST, PLAN, is_store, states_path

MARKER = ".planning"  # on object storage
COPYING = ".fusionkit-planning"  # in a local folder: what is copied, under a name that no other program gives
OWN = {MANIFEST, PLAN, LM_HEAD, *FOLDERS, COPYING, MARKER}  # of a store
IMMOVABLE = (errno.EBUSY, errno.EXDEV)  # of a mount point; of a folder of a lower layer of an overlay file system


def resolved(out: Place) -> Place:
    """The place; of a link, "." or "..", the path that it stands for, because a draft is renamed to ``out``."""
    if not isinstance(out, Path):
        return out
    with reading(out):
        return out.resolve() if out.is_symlink() or out.name in ("", "..") else out


@contextlib.contextmanager
def draft_folder(out: Place, check: Callable[[], object] = lambda: None) -> Iterator[Path]:
    """A local folder for the plan; if the block ends without an error, its files become the store at ``out``.

    Args:
        check: called before anything at ``out`` is replaced; its errors pass through.

    Raises:
        FusionkitError: the disk is full; nothing is left behind, except in a folder that cannot be renamed, which the
            next call clears.
    """
    if isinstance(out, Path):
        draft = _draft_of(out)
        with disk_errors(out):
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir(parents=True)
            try:
                yield draft
                sync_tree(draft)
                check()
                _rename(draft, out)
            except BaseException:
                shutil.rmtree(draft, ignore_errors=True)
                raise
        return
    with tempfile.TemporaryDirectory(prefix="fusionkit-plan-") as folder:
        draft = Path(folder)
        with disk_errors(draft):
            yield draft
        check()
        _upload(draft, out)


def clear_leftovers(out: Place) -> None:
    """Remove the files that a killed process left in a store's place and beside it; the caller holds its lock."""
    if not isinstance(out, Path):
        if is_file(out / MARKER):
            # Uploads write the plan last and remove the old manifest first: without both files no store is complete.
            if not is_store(out):
                remove_below(out, [name for name in sizes_below(out) if name != MARKER])
            remove_below(out, [MARKER])  # last: without it, remaining files would look like another program's
        return
    draft, old = _draft_of(out), _replaced_of(out)
    if old.exists() and not out.exists():  # killed between the two renames
        old.replace(out)
    for folder in (draft, old):
        shutil.rmtree(folder, ignore_errors=True)
    if is_folder(out / COPYING):
        if not is_store(out):
            _empty(out)
        shutil.rmtree(out / COPYING)  # last, as above
    for leftover in _partials(out):
        leftover.unlink(missing_ok=True)  # a worker that outlives its driver may rename it first


def has_leftovers(out: Path) -> bool:
    """Whether a finished store has files in its place or beside it that a killed process left, or locks."""
    return (
        is_folder(out / COPYING)
        or is_file(out / PLAN)
        or any(path.name.startswith(f".{out.name}.") for path in listed(out.parent))
        or next(_partials(out), None) is not None
    )


def _partials(out: Path) -> Iterator[Path]:
    """Half-written files of a store; runs that lie in its folder have such files of their own."""
    yield from out.glob("*.partial")
    for folder in FOLDERS:
        yield from (out / folder).rglob("*.partial")


def refuse_foreign(out: Place) -> None:
    """Raise :class:`UsageError` if ``out`` holds files that do not belong to a store."""
    # Other programs write a manifest.json too; --overwrite must not empty their folders.
    ours = is_store(out) and is_folder(states_path(out))
    if not isinstance(out, Path):
        ours = ours or is_file(out / MARKER)
        foreign = not ours and (is_file(out) or bool(sizes_below(out)))
    else:
        ours = ours or is_folder(out / COPYING)
        foreign = out.exists() and not ours and (not out.is_dir() or any(out.iterdir()))
    if foreign:
        raise UsageError(
            f"{out} exists and is no store",
            expected="a new place, an empty folder or a store",
            received="a file" if is_file(out) else "a folder with other files",
            remedy="choose another --out; nothing was touched",
        )


def refuse_strangers(out: Place) -> None:
    """Raise UsageError if a store that is to be replaced has other files in its folder, such as runs: they would be
    lost. Hidden files do not count.
    """
    names = {place.name for place in listed(out)} - OWN
    if not isinstance(out, Path):
        names.discard(out.name)  # some object storage lists the folder itself
    strange = sorted(name for name in names if not name.startswith(".") and not name.endswith(".partial"))
    if strange:
        raise UsageError(
            f"{out} holds files that do not belong to the store: --overwrite would remove them",
            expected="the store's own files alone",
            received=few(strange, 3),
            remedy="move them elsewhere, or choose another --out; nothing was touched",
        )


def _draft_of(out: Path) -> Path:
    """The folder in which a plan is made."""
    return out.with_name(f".{out.name}.planning")


def _replaced_of(out: Path) -> Path:
    """The folder that a replaced store is moved to."""
    return out.with_name(f".{out.name}.replaced")


def _rename(draft: Path, out: Path) -> None:
    old = _replaced_of(out)
    if out.exists():
        try:
            out.replace(old)
        except OSError as error:
            if error.errno not in IMMOVABLE:
                raise
            _copy(draft, out)
            return
        draft.replace(out)
        shutil.rmtree(old, ignore_errors=True)  # over NFS a file that is open stays; the next encode removes the rest
    else:
        draft.replace(out)
    sync_folder(out.parent)


def _copy(draft: Path, out: Path) -> None:
    """Replace the content of a folder by a draft's. The old content is there until all of the draft is on its disk."""
    copied = out / COPYING
    for file in filter(Path.is_file, draft.rglob("*")):  # not copytree, whose error has no code
        (copy := copied / file.relative_to(draft)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
    for folder in filter(Path.is_dir, draft.rglob("*")):  # also those without files
        (copied / folder.relative_to(draft)).mkdir(parents=True, exist_ok=True)
    sync_tree(copied)
    sync_folder(out)
    _empty(out)
    for path in copied.iterdir():
        if path.name != PLAN:
            path.replace(out / path.name)
    sync_folder(out)
    (copied / PLAN).replace(out / PLAN)
    sync_folder(out)
    for folder in (copied, draft):
        shutil.rmtree(folder)


def _empty(out: Path) -> None:
    """Remove all of a store but the copy; manifest and plan first, so that no half of a store is a complete one."""
    for name in (MANIFEST, PLAN):
        (out / name).unlink(missing_ok=True)
    sync_folder(out)
    for path in out.iterdir():
        if path.name == COPYING:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _upload(draft: Path, out: UPath) -> None:
    write_durably(out / MARKER, b"a plan is being written here\n")
    before = [name for name in sizes_below(out) if name != MARKER]
    remove_below(out, [name for name in before if name in (MANIFEST, PLAN)])
    remove_below(out, [name for name in before if name not in (MANIFEST, PLAN)])
    upload({name: draft / name for name in sizes_below(draft) if name != PLAN}, out)
    write_durably(out / PLAN, (draft / PLAN).read_bytes())
    remove_below(out, [MARKER])
