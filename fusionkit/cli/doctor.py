"""``fusionkit doctor``."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import click
from packaging.requirements import Requirement

from fusionkit.cli.console import JSON_OPTION, out, print_json
from fusionkit.machine.resources import cores, spare_memory

SET = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "HF_HOME", "HF_HUB_OFFLINE")  # besides all FUSIONKIT_…
INSTRUCTIONS = ("avx2", "avx512_f", "avx512_bf16", "avx512_fp16", "amx_bf16", "bf16", "sve")
DEVELOPERS = ("dev", "docs", "test")  # extras for work on fusionkit itself


@click.command()
@JSON_OPTION
def doctor(as_json: bool) -> None:
    """Print what fusionkit finds here: versions, encoder, devices, threads, caches, extras. Paste it into a report."""
    found: dict[str, str] = {}
    for name, tell in FACTS.items():
        try:
            found[name] = tell()
        except Exception as error:  # this command has to report what is broken
            found[name] = f"unknown: {type(error).__name__}: {' '.join(str(error).split())}"
        if not as_json:
            out().print(f"{name:<13} {found[name]}", soft_wrap=True)
    if as_json:
        print_json(found)


def _versions() -> str:
    names = dict.fromkeys(need.name for need, extra in _requirements() if extra is None)
    return ", ".join(f"{name} {_version(name) or 'is missing'}" for name in names)


def _encoder() -> str:
    from fusionkit.bundled import minilm_folder
    from fusionkit.errors import FusionkitError

    try:
        return f"minilm in {minilm_folder()}"
    except FusionkitError as error:
        return f"{error.what}: {error.remedy}"


def _processor() -> str:
    import torch

    known = torch.cpu.get_capabilities()
    names = [name for name in INSTRUCTIONS if known.get(name)]
    memory = spare_memory()
    left = "" if memory is None else f", {memory / 1e9:.1f} GB of memory left"
    return f"{known.get('cpu_name') or platform.machine()}, {cores()} cores, {' '.join(names) or 'no vectors'}{left}"


def _threads() -> str:
    import torch

    names = sorted({*SET, *(name for name in os.environ if name.startswith("FUSIONKIT_"))})
    told = [f"{name}={os.environ[name]}" for name in names if name in os.environ]
    return ", ".join([f"torch {torch.get_num_threads()}", *told])


def _devices() -> str:
    import torch

    gpus = [
        f"cuda:{n} {torch.cuda.get_device_name(n)}, {torch.cuda.get_device_properties(n).total_memory / 1e9:.0f} GB"
        for n in range(torch.cuda.device_count())
    ]
    return "; ".join(["cpu", *gpus])


def _chunk_cache() -> str:
    from fusionkit.store.cache import default_cache

    cache = default_cache()
    return "off" if not cache.limit else f"{_writable(cache.folder)}, at most {cache.limit / 1e9:g} GB"


def _hub_cache() -> str:
    from huggingface_hub.constants import HF_HUB_CACHE

    return _writable(Path(HF_HUB_CACHE))


def _writable(folder: Path) -> str:
    """A folder, whether it is writable, and the free space; no folder is created."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            state = "writable"
    except OSError as error:
        state = f"not writable ({error.strerror})"
    return f"{folder}: {state}, {shutil.disk_usage(there).free / 1e9:.1f} GB free"


def _extras() -> str:
    missing: dict[str, list[str]] = {}
    for need, extra in _requirements():
        if extra is not None and extra not in DEVELOPERS:
            missing.setdefault(extra, [])
            missing[extra] += [] if _version(need.name) else [need.name]
    return "; ".join(
        f"{extra}: lacks {', '.join(names)} (pip install 'fusionkit[{extra}]')" if names else f"{extra}: complete"
        for extra, names in missing.items()
    )


def _requirements() -> Iterator[tuple[Requirement, str | None]]:
    """Each package that fusionkit needs, with the extra that it belongs to."""
    extras = importlib.metadata.metadata("fusionkit").get_all("Provides-Extra") or []
    for text in importlib.metadata.requires("fusionkit") or []:
        need = Requirement(text)
        if need.marker is None or need.marker.evaluate({"extra": ""}):
            yield need, None
        else:
            yield from ((need, extra) for extra in extras if need.marker.evaluate({"extra": extra}))


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


# In this order: facts that load torch, which takes seconds, come last.
FACTS: dict[str, Callable[[], str]] = {
    "fusionkit": lambda: f"{_version('fusionkit')} in {Path(__file__).parent.parent}",
    "python": lambda: f"{platform.python_version()} ({sys.executable}), {platform.platform()}",
    "packages": _versions,
    "encoder": _encoder,
    "extras": _extras,
    "hub's cache": _hub_cache,
    "temporary": lambda: _writable(Path(tempfile.gettempdir())),
    "Slurm": lambda: shutil.which("sbatch") or "no sbatch",
    "chunk cache": _chunk_cache,
    "processor": _processor,
    "threads": _threads,
    "devices": _devices,
}
