"""Calls of Slurm's own programs: sbatch, squeue, scancel and sinfo."""

from __future__ import annotations

import itertools
import os
import shlex
import subprocess
from collections.abc import Mapping
from typing import NamedTuple

from fusionkit.errors import FusionkitError, StoppedError, UsageError

SECONDS = 60  # for one answer; a busy controller is slow
# Variables that Slurm sets in a job. sbatch passes them on, but a worker's job must not take them for its own.
OF_A_JOB = ("SLURM_", "SLURMD_", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ROCR_VISIBLE_DEVICES")
OF_A_SITE = ("SLURM_CONF", "SLURM_CLUSTERS")
OF_A_USER = ("SQUEUE_", "SCANCEL_")  # the user's own filters, which would hide jobs here


class JobState(NamedTuple):
    """A job that waits or runs: Slurm's name for its state, and why it waits."""

    state: str
    reason: str


def submit(name: str, script: str) -> int:
    """Hand a job to Slurm, under a name that no directive of the script changes. Variables of the environment, such as
    ``SBATCH_PARTITION``, go before a script's directives for sbatch, so these are options of the command too.

    Returns:
        its number.

    Raises:
        UsageError: Slurm refuses it; the message has sbatch's own words. FusionkitError: there is no answer.
    """
    done = _run(["sbatch", "--parsable", *_directives(script), f"--job-name={name}"], script)
    number = done.stdout.strip().partition(";")[0]
    if done.returncode or not number.isdecimal():
        raise UsageError(
            "Slurm refuses the job of a worker",
            expected="a job that the partition can run (`--print-job` shows it)",
            received=_words(done.stderr or done.stdout),
            remedy="change that setting in --cluster-config",
        )
    return int(number)


def _directives(script: str) -> list[str]:
    """The options in a script's ``#SBATCH`` lines, which are those before its first command."""
    head = itertools.takewhile(lambda line: line.startswith("#") or not line.strip(), script.splitlines())
    found = list[str]()
    for line in head:
        if line.startswith("#SBATCH "):
            try:
                found += shlex.split(line.removeprefix("#SBATCH "), comments=True)
            except ValueError as error:
                raise UsageError(
                    "a directive of a worker's job has an open quote",
                    expected="--option=value, quoted as in a shell",
                    received=line,
                    remedy="close it in `directives` of --cluster-config",
                ) from error
    return found


def active(name: str) -> dict[int, JobState] | None:
    """The jobs of this name that wait or run; None where Slurm does not answer at the moment."""
    try:
        done = _run(["squeue", "--noheader", f"--name={name}", "--format=%A|%T|%r"])
    except StoppedError:
        raise
    except FusionkitError:
        return None
    if done.returncode:
        return None
    found = (line.strip().split("|", 2) for line in done.stdout.splitlines() if line.count("|") >= 2)  # not titles
    return {int(number): JobState(state, reason) for number, state, reason in found}


def cancel(name: str, numbers: tuple[int, ...] = ()) -> None:
    """End all jobs of this name, or only those with these numbers; jobs that have ended already are no error."""
    _run(["scancel", f"--name={name}", *map(str, numbers)])


def try_cancel(name: str, numbers: tuple[int, ...]) -> bool:
    """As :func:`cancel`; False where Slurm does not answer at the moment."""
    try:
        cancel(name, numbers)
    except StoppedError:
        raise
    except FusionkitError:
        return False
    return True


def offers_gpus(partition: str | None) -> bool:
    """Whether a node of the partition, or else of the one that sbatch would take, has GPUs."""
    chosen = partition or os.environ.get("SBATCH_PARTITION")
    which = [] if chosen is None else [f"--partition={chosen}"]
    lines = _run(["sinfo", "--noheader", "--format=%P %G", *which]).stdout.splitlines()
    default = [line for line in lines if line.split(" ")[0].endswith("*")]  # Slurm's mark of the default partition
    return any("gpu" in line.split()[-1] for line in (default if chosen is None and default else lines) if line.strip())


def outside_of_jobs(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment without the variables of the job that this process is part of, and without the user's filters."""
    left = OF_A_USER + (OF_A_JOB if "SLURM_JOB_ID" in environment else ())
    return {name: value for name, value in environment.items() if name in OF_A_SITE or not name.startswith(left)}


def _run(command: list[str], given: str | None = None) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, input=given, text=True, capture_output=True, timeout=SECONDS, env=outside_of_jobs(os.environ),
            start_new_session=True,  # Ctrl-C must not end this call: its answer is needed
        )  # fmt: skip
    except FileNotFoundError as error:
        raise UsageError(
            f"there is no Slurm here: no program {command[0]!r}",
            expected=f"{command[0]} on the PATH",
            remedy="run on a machine that submits jobs, or choose --cluster local",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise FusionkitError(
            f"Slurm does not answer: {command[0]} took longer than {SECONDS} s",
            remedy="run the same command again: finished work is kept",
        ) from error


def _words(said: str) -> str:
    """The lines that sbatch wrote, without its name before each."""
    return "; ".join(line.removeprefix("sbatch: ").removeprefix("error: ") for line in said.strip().splitlines())
