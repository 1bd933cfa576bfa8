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
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fusionkit.errors import UsageError, unknown_name
from fusionkit.options.entry import YES_NO
from fusionkit.options.yaml_file import shown
from fusionkit.options.yaml_texts import read_texts
from fusionkit.specs import parse_bytes

KINDS = ("local", "slurm")
SCHEMES = ("tcp://", "tls://")
LOOPBACK = "127.0.0.1"
TLS = ("tls_ca", "tls_cert", "tls_key")
# As sbatch takes it: minutes, minutes:seconds, or [days-]hours:minutes:seconds.
WALLTIME = re.compile(r"(\d+-)?\d+(:\d{2}){0,2}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClusterSettings:
    """Where work is done.

    Attributes:
        kind: ``local``, ``slurm``, or the address of a scheduler that runs already, ``tcp://…`` or ``tls://…``.
        workers: the number of processes; None is one per GPU or, without GPUs, as many as fill the cores; with slurm 1.
        threads: CPU threads of a worker; None is 1. Local workers, with GPUs or a given number of workers, have
            cores / workers; ``fit`` trains with its own ``--threads``, 1 unless given.
        partition, account, walltime: of the jobs, as ``sbatch`` takes them.
        directives: further options of ``sbatch``, like ``--qos=short``.
        gpus: GPUs per worker, 0 or 1; None is 1 where there are GPUs.
        memory: memory of a worker's job, like ``16GB``.
        environment: shell commands that run before a worker starts.
        python: the interpreter that starts workers; None is this one.
        log_folder: where the jobs' output goes.
        start_timeout: seconds without any worker after which the work is given up.
        interface, host: the network device, or the address, that the scheduler listens on.
        public: a scheduler without TLS: whoever reaches it can run code as its owner.
        tls_ca, tls_cert, tls_key: PEM files of the authority, and of scheduler, workers and client; without them a
            temporary key is made for the cluster.

    Raises:
        UsageError: a value out of range, or settings that do not fit together.
    """

    kind: str = "local"
    workers: int | None = None
    threads: int | None = None
    partition: str | None = None
    account: str | None = None
    walltime: str | None = None
    directives: tuple[str, ...] = ()
    gpus: int | None = None
    memory: str | None = None
    environment: tuple[str, ...] = ()
    python: str | None = None
    log_folder: str = "fusionkit-logs"
    start_timeout: float = 300.0
    interface: str | None = None
    host: str = LOOPBACK
    public: bool = False
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS and not self.kind.startswith(SCHEMES):
            raise unknown_name("kind of cluster", self.kind, (*KINDS, "tcp://HOST:PORT", "tls://HOST:PORT"))
        if self.kind not in KINDS and not _has_port(self.kind):
            raise UsageError(
                f"{self.kind} is no address of a scheduler",
                expected="tcp://HOST:PORT or tls://HOST:PORT",
                received=self.kind,
                remedy="give the address that `dask scheduler` prints",
            )
        for name, least, most in (("workers", 1, None), ("threads", 1, None), ("gpus", 0, 1)):
            value = getattr(self, name)
            if value is not None and (value < least or (most is not None and value > most)):
                expected = f"{least} or {most}" if most is not None else f"{least} or more"
                raise _wrong(name, expected, value)
        if not 0 < self.start_timeout < float("inf"):
            raise _wrong("start_timeout", "seconds, above 0", self.start_timeout)
        if self.walltime is not None and not WALLTIME.fullmatch(self.walltime):
            raise _wrong("walltime", "minutes, or [DAYS-]HOURS:MINUTES:SECONDS", self.walltime)
        for name in ("partition", "account", "memory", "walltime"):
            if "\n" in (getattr(self, name) or ""):  # it would be a line of its own in the job's script
                raise _wrong(name, "one line", getattr(self, name))
        if self.memory is not None:
            parse_bytes(self.memory)
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

    @property
    def tls(self) -> bool:
        """Whether all connections are encrypted and both ends are authenticated."""
        return self.tls_ca is not None

    @property
    def tls_files(self) -> dict[str, str]:
        """The absolute paths of the certificates' files, by setting; none without TLS."""
        return {name: str(Path(getattr(self, name)).expanduser().resolve()) for name in TLS} if self.tls else {}


def _has_port(address: str) -> bool:
    """Whether an address has a host and a port; without them Dask would wait for a minute."""
    try:
        parts = urlsplit(address)
        return bool(parts.hostname and parts.port)
    except ValueError:
        return False


def read_settings(path: str | Path | None, **given: Any) -> ClusterSettings:
    """The settings in a YAML file; values of ``given`` that are not None win over the file.

    Raises:
        UsageError: it cannot be read, or a key or value is wrong.
    """
    found = {} if path is None else _parsed(Path(path).expanduser())
    return settings_of({**found, **{name: value for name, value in given.items() if value is not None}}, path)


def settings_of(values: Mapping[str, Any], path: str | Path | None = None) -> ClusterSettings:
    """Settings from plain values, as YAML or the command line gives them.

    Raises:
        UsageError: a misspelt key (the message has the nearest one); a value of another kind, or out of range.
    """
    fields = {field.name: field for field in dataclasses.fields(ClusterSettings)}
    read: dict[str, Any] = {}
    for key in values:
        if str(key).replace("-", "_") not in fields:
            raise _within(unknown_name("cluster setting", str(key), fields), path)
    try:
        for key, value in values.items():
            if value is not None and value != "":  # `partition:` alone leaves the default
                name = str(key).replace("-", "_")
                read[name] = _value(name, str(fields[name].type), value)
        return ClusterSettings(**read)
    except UsageError as error:
        raise _within(error, path) from None


def _value(name: str, kind: str, value: Any) -> Any:
    """A value as its field takes it; texts are parsed, so that quotes in YAML change nothing."""
    if kind.startswith("tuple"):
        lines = value if isinstance(value, list) else [value]
        if not all(isinstance(line, str) for line in lines):
            raise _wrong(name, "lines of text", value)
        return tuple(line for each in lines for line in each.splitlines())
    if kind.startswith("bool"):
        found = value if isinstance(value, bool) else YES_NO.get(str(value).lower())
        if found is None:
            raise _wrong(name, "true or false", value)
        return found
    if kind.startswith(("int", "float")):
        try:
            if isinstance(value, bool):
                raise ValueError
            return int(str(value)) if kind.startswith("int") else float(value)
        except (TypeError, ValueError):
            raise _wrong(name, "a whole number" if kind.startswith("int") else "a number", value) from None
    if not isinstance(value, str) or not value.strip():
        raise _wrong(name, "a text", value)
    return value


def _parsed(path: Path) -> dict[str, Any]:
    found, _ = read_texts(path, "cluster configuration", "a YAML file of cluster settings", "mend that line")
    if isinstance(found, dict) and "cluster" in found:
        found = found["cluster"]
    if not isinstance(found, dict):
        raise UsageError(
            f"{path} holds no cluster settings",
            expected="settings like `workers: 4`, or `cluster:` with settings below it",
            received=shown(found),
            remedy="write one setting a line, like `kind: local`",
        )
    return found


def _wrong(name: str, expected: str, received: object) -> UsageError:
    return UsageError(
        f"cluster setting {name!r} is out of range",
        expected=expected,
        received=shown(received) if isinstance(received, (list, dict)) else repr(received)[:60],
        remedy="choose a value in that range",
    )


def _within(error: UsageError, path: str | Path | None) -> UsageError:
    if path is None:
        return error
    return UsageError(f"{path}: {error.what}", expected=error.expected, received=error.received, remedy=error.remedy)
