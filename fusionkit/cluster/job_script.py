"""The job of one worker: a script for ``sbatch``, made from the settings."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from fusionkit.cluster.settings import LOOPBACK, ClusterSettings
from fusionkit.machine.huge_pages import HUGE_PAGES, TUNABLES
from fusionkit.specs import parse_bytes

# Seconds after which a worker without a scheduler ends, and its job with it.
DEATH_TIMEOUT = 60
# On SIGTERM, from scancel or at the walltime, a worker would wait for its task. It is killed instead, which leaves no
# broken file: files are written aside and renamed.
ENDING = (
    "worker=$!", "trap 'kill -KILL $worker' TERM INT", "wait $worker", "status=$?", 'rm -rf "$scratch"', "exit $status",
)  # fmt: skip
# A folder that no other user can write to: Dask imports from it first of all. TMPDIR may be one of the driver's machine
# alone.
SCRATCH = (
    "scratch=$(mktemp -d || mktemp -d -p /tmp) || exit 1",
    'export DASK_TEMPORARY_DIRECTORY="$scratch"',
)
EXPORTS = {
    "TOKENIZERS_PARALLELISM": "false",
    "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False",
    "DASK_DISTRIBUTED__WORKER__HTTP__ROUTES": "[]",  # pages that anybody could read
}
# As `with_huge_pages` does: other tunables of the user stay, and so does one for huge pages.
TUNED = (
    f'case "${{{TUNABLES}-}}" in *{HUGE_PAGES}*) ;; '
    f'*) export {TUNABLES}="${{{TUNABLES}:+${TUNABLES}:}}{HUGE_PAGES}=1" ;; esac'
)
TLS_ARGUMENTS = {"tls_ca": "--tls-ca-file", "tls_cert": "--tls-cert", "tls_key": "--tls-key"}


def job_script(
    settings: ClusterSettings, name: str, address: str, gpus: int, certificates: Mapping[str, str] | None = None
) -> str:
    """The script of a job with one worker process: the process ends with its job, and the job with its process.

    Args:
        name: of the job. address: the scheduler's. gpus: 0 or 1. certificates: files by setting, instead of the
            settings' own.
    """
    threads = settings.threads or 1
    python = str(Path(settings.python or sys.executable).expanduser())
    worker = [
        # -P: it would import from the working folder first.
        python, "-P", "-m", "distributed.cli.dask_worker", address,
        # A nanny would restart the process of a job that is being ended, and end one by its own count of memory.
        "--no-nanny", "--nworkers", "1", "--nthreads", "1", "--memory-limit", "0", "--no-dashboard",
        "--dashboard-address", "127.0.0.1:0",
        "--death-timeout", str(DEATH_TIMEOUT),
    ]  # fmt: skip
    if settings.interface:
        worker += ["--interface", settings.interface]
    elif settings.host == LOOPBACK:  # else it would listen on every interface
        worker += ["--host", LOOPBACK]
    for field, path in (certificates or settings.tls_files).items():
        worker += [TLS_ARGUMENTS[field], path]
    lines = ["#!/bin/bash", *directives(settings, name, gpus), ""]
    lines += [f"export {name}={value}" for name, value in {**EXPORTS, "OMP_NUM_THREADS": threads}.items()]
    lines += [*settings.environment, TUNED, *SCRATCH]
    lines += [f'{shlex.join(worker)} --name "$SLURM_JOB_ID" &', *ENDING]
    return "\n".join(lines) + "\n"


def directives(settings: ClusterSettings, name: str, gpus: int) -> list[str]:
    """The lines that ``sbatch`` reads."""
    asked = {
        "job-name": name,
        "output": _quoted(str(log_file(settings, name, "J")).replace("%", "%%").removesuffix("J.log") + "%j.log"),
        "partition": settings.partition,
        "account": settings.account,
        "time": settings.walltime,
        "ntasks": "1",
        "cpus-per-task": str(settings.threads or 1),
        "mem": None if settings.memory is None else f"{max(1, parse_bytes(settings.memory) // 2**20)}M",
        "gres": "gpu:1" if gpus else None,
    }
    lines = [f"#SBATCH --{option}={value}" for option, value in asked.items() if value is not None]
    # A job that Slurm requeues by itself would not be counted; the driver replaces lost jobs.
    lines += ["#SBATCH --no-requeue", "#SBATCH --open-mode=append"]
    return lines + [f"#SBATCH {option}" for option in settings.directives]


def log_file(settings: ClusterSettings, name: str, number: int | str) -> Path:
    return Path(settings.log_folder).expanduser().resolve() / f"{name}-{number}.log"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
