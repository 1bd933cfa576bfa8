"""The settings of a cluster, as the user gives them: ``--cluster KIND`` and a YAML file of these fields.

    kind: slurm                 # local, slurm or the address of a scheduler
    workers: 8
    walltime: "04:00:00"
    environment: [module load cuda]

The same fields may stand below ``cluster:`` in another file. By default a scheduler listens on loopback, and with TLS
unless ``public`` is set (:mod:`fusionkit.cluster.certificates`).
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fusionkit.errors import UsageError, errors_at, unknown_name
from fusionkit.options.entry import NONE, WHOLE, check_options, documented, option, options_of
from fusionkit.options.yaml_file import YamlNode, read_options, read_yaml, shown
from fusionkit.options.yaml_texts import Keys
from fusionkit.specs import parse_bytes

KINDS = ("local", "slurm")
SCHEMES = ("tcp://", "tls://")
LOOPBACK = "127.0.0.1"
TLS = ("tls_ca", "tls_cert", "tls_key")
DEVICES = ("auto", "cpu", "cuda")
LEAST_MEMORY = 100_000_000  # bytes
LINES = ("directives", "environment")
OF_JOBS = ("partition", "account", "walltime", "memory", "python", "log_folder", *LINES)
ONE_LINE = r"[^\n]*"  # a second line would be one of its own in the job's script


@documented
@dataclasses.dataclass(frozen=True, kw_only=True)
class ClusterSettings:
    """Where work is done; UsageError for a value out of range, or settings that do not fit together."""

    kind: str = option("local", "local, slurm, or the address of a scheduler that runs already, tcp://… or tls://….")
    workers: int | None = option(
        None, "Number of processes. [default: one per GPU; without GPUs, as many as fill the cores; with slurm 1]", ge=1
    )
    threads: int | None = option(
        None,
        "CPU threads of a worker while it encodes; fit trains with its own --threads. [default: 1; of local workers, "
        "with GPUs or a given number of workers, cores / workers]",
        ge=1,
    )
    partition: str | None = option(
        None, "Partition of the jobs, as sbatch takes it.", pattern=ONE_LINE, example="one line"
    )
    account: str | None = option(None, "Account of the jobs, as sbatch takes it.", pattern=ONE_LINE, example="one line")
    walltime: str | None = option(
        None,
        "Time limit of a job, as sbatch takes it, like 04:00:00.",
        pattern=r"(\d+-)?\d+(:\d{2}){0,2}",
        example="minutes, or [DAYS-]HOURS:MINUTES:SECONDS",
    )
    directives: tuple[str, ...] = option((), "Further options of sbatch, like --qos=short.", lists=WHOLE)
    gpus: int | None = option(None, "GPUs per worker, 0 or 1. [default: 1 where there are GPUs]", ge=0, le=1)
    memory: str | None = option(None, "Memory of a worker's job, like 16GB.")
    environment: tuple[str, ...] = option((), "Shell commands that run before a worker starts.", lists=WHOLE)
    python: str | None = option(None, "Interpreter that starts workers. [default: this one]")
    log_folder: str = option("fusionkit-logs", "Folder for the jobs' output.")
    start_timeout: float = option(
        300.0, "Seconds without any worker after which the work is given up.", gt=0, unit="seconds"
    )
    interface: str | None = option(None, "Network interface that the scheduler listens on.")
    host: str = option(LOOPBACK, "Address that the scheduler listens on.")
    public: bool = option(False, "No TLS: whoever reaches the scheduler can run code as its owner.")
    tls_ca: str | None = option(
        None, "PEM file of the authority. [default: the three files are made, with a temporary key for the cluster]"
    )
    tls_cert: str | None = option(None, "PEM file with the certificate of scheduler, workers and client.")
    tls_key: str | None = option(None, "PEM file with their key.")

    def __post_init__(self) -> None:
        check_options(self, but=LINES)
        _check_kind(self.kind)
        if self.memory is not None:
            _check_memory(self.memory)
        self._check_tls()

    def _check_tls(self) -> None:
        given = [name for name in TLS if getattr(self, name) is not None]
        for name in given:
            if not Path(getattr(self, name)).expanduser().is_file():
                raise UsageError(
                    f"cluster setting {name!r} names no file",
                    expected="a PEM file",
                    received=getattr(self, name),
                    remedy="check the path",
                )
        if given and len(given) < len(TLS):
            raise UsageError(
                "TLS needs three files", expected=", ".join(TLS), received=", ".join(given), remedy="give all of them"
            )
        if self.kind.startswith("tls://") and not given:
            raise UsageError(
                f"{self.kind} needs certificates", expected=", ".join(TLS), remedy="give them in --cluster-config"
            )

    def on(self, device: str) -> ClusterSettings:
        """The settings for work on a device: for ``cpu`` without GPUs, unless they say otherwise.

        Raises:
            UsageError: workers have no such device.
        """
        if device not in DEVICES:
            raise UsageError(
                f"the workers of a cluster have no device {device!r}: each sees one GPU at most",
                expected="--device auto, cpu or cuda, without a number",
                received=f"--device {device} beside --cluster",
                remedy="choose one of those",
            )
        return dataclasses.replace(self, gpus=0) if device == "cpu" and self.gpus is None else self

    @property
    def tls(self) -> bool:
        """Whether all connections are encrypted and both ends are authenticated."""
        return self.tls_ca is not None

    @property
    def tls_files(self) -> dict[str, str]:
        """The absolute paths of the certificates' files, by setting; none without TLS."""
        return {name: str(Path(getattr(self, name)).expanduser().resolve()) for name in TLS} if self.tls else {}


def _check_memory(memory: str) -> None:
    """Raise UsageError for no number of bytes, or one that no worker starts in: sbatch means megabytes by ``16000``."""
    if parse_bytes(memory) < LEAST_MEMORY:
        raise UsageError(
            "a worker cannot start in so little memory",
            expected="a number with its unit, like 16GB",
            received=memory,
            remedy="add the unit",
        )


def for_sweep(settings: ClusterSettings, threads: int, runs: int) -> ClusterSettings:
    """The settings for a sweep: a worker has cores for its ``threads``, and Slurm starts no more workers than ``runs``
    are left.
    """
    if settings.kind in KINDS and threads > (settings.threads or 1):
        settings = dataclasses.replace(settings, threads=threads)
    if settings.kind == "slurm" and (settings.workers or 1) > runs:
        settings = dataclasses.replace(settings, workers=runs)
    return settings


def _check_kind(kind: str) -> None:
    """Raise UsageError for no kind of cluster, or an address that lacks host or port: Dask would wait for a minute."""
    if kind in KINDS:
        return
    if not kind.startswith(SCHEMES):
        raise unknown_name("kind of cluster", kind, (*KINDS, "tcp://HOST:PORT", "tls://HOST:PORT"))
    try:
        parts = urlsplit(kind)
        is_whole = bool(parts.hostname and parts.port)
    except ValueError:
        is_whole = False
    if not is_whole:
        raise UsageError(
            f"{kind} is no address of a scheduler",
            expected="tcp://HOST:PORT or tls://HOST:PORT",
            received=kind,
            remedy="give the address that `dask scheduler` prints",
        )


# The settings as keys of a file.
SETTINGS = {
    name: entry if entry.lists == WHOLE else dataclasses.replace(entry, lists=NONE)
    for name, entry in options_of(ClusterSettings).items()
}
KEYS = SETTINGS | {entry.flag: entry for entry in SETTINGS.values()}  # start_timeout, or start-timeout


def read_settings(path: str | Path | None, **given: Any) -> ClusterSettings:
    """The settings in a YAML file; values of ``given`` that are not None win over the file.

    Raises:
        UsageError: it cannot be read, or a key or value is wrong.
    """
    if path is None:
        return ClusterSettings(**_set(given))
    expected = "settings like `workers: 4`, or `cluster:` with settings below it"
    written = read_yaml(Path(path).expanduser(), "cluster configuration", expected, "mend that line")
    return settings_of(written, **given)


def settings_of(written: YamlNode, **given: Any) -> ClusterSettings:
    """The settings below ``cluster:`` in a file, or the whole file; as :func:`read_settings`. Those of Slurm's jobs are
    refused without ``kind: slurm``, in the file or given.
    """
    keys: Keys = ("cluster",) if "cluster" in written.value else ()
    block = written.value.get("cluster", written.value)
    if not isinstance(block, dict):
        raise written.wrong(
            keys,
            "'cluster' is no block",
            expected="settings below it",
            received=shown(block),
            remedy="write one setting a line, like `kind: local`",
        )
    for key in block:
        written.among((*keys, key), "cluster setting", key.replace("-", "_"), SETTINGS)
    filled = {key: value for key, value in block.items() if value != ""}  # `partition:` alone leaves the default
    read = read_options(written, keys, filled, KEYS, {"kind": _check_kind, "memory": _check_memory})
    for name in LINES:
        if name in read:
            read[name] = tuple(line for each in read[name] for line in each.splitlines())
    with errors_at(written.where(*keys)):
        settings = ClusterSettings(**read | _set(given))
    kinds = [kind for kind in (given.get("kind"), read.get("kind")) if kind is not None]
    of_jobs = next((key for key in filled if key.replace("-", "_") in OF_JOBS), None)
    if of_jobs is not None and "slurm" not in kinds:
        raise written.wrong(
            (*keys, of_jobs),
            f"{of_jobs!r} is a setting of Slurm's jobs",
            expected="kind: slurm",
            received=f"kind: {kinds[0]}" if kinds else "no kind",
            remedy="add `kind: slurm` or --cluster slurm, or leave that setting out",
        )
    return settings


def _set(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}
