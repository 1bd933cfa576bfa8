"""A real Slurm on this host: munged, slurmctld and a slurmd for each of two nodes, from Debian's packages.

Everything lies in one temporary folder whose path has no space (Slurm's own files cannot name one) and listens on
ports of its own, so that a Slurm that the machine runs already is another one. The daemons run in the foreground, as
children of this process: the kernel ends them with it, however it ends. What it does not end, the next run sweeps up.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

leftovers: Any = sys.modules["slurm_leftovers"]  # conftest.py has loaded it
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol", "setpriv")
PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge")
SBIN = f"{os.pathsep}/usr/sbin{os.pathsep}/sbin"  # Debian's daemons are there, and in few people's path
NODES, CPUS, GPUS, MEMORY = 2, 4, 2, 8000  # a node claims this much; Slurm is told not to look
SECONDS = 180

CONF = """
ClusterName=fusionkit
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge.socket
CredType=cred/munge
SlurmctldPort={ports[0]}
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd-%n.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd-%n.log
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool-%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SchedulerType=sched/backfill
SchedulerParameters=sched_min_interval=100000,bf_interval=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
KillWait=2
MinJobAge=300
MaxArraySize=100
GresTypes=gpu
PartitionName=test Nodes=node[1-{nodes}] Default=YES MaxTime=24:00:00 State=UP
"""
NODE = (
    "NodeName=node{n} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} "
    "CPUs={cpus} RealMemory={memory} Gres=gpu:{gpus}"
)
GRES = "NodeName=node{n} Name=gpu Count={gpus} File=/dev/tty[1-{gpus}]"  # no GPU, but files that are there


@dataclass(frozen=True)
class Slurm:
    """A running Slurm.

    Attributes:
        root: its folder; logs are there. environment: what a process needs to use it.
    """

    root: Path
    environment: dict[str, str]

    def run(self, *command: object) -> str:
        """The output of one of Slurm's programs."""
        given = [str(word) for word in command]
        return subprocess.run(
            given, env=self.using(), check=True, text=True, capture_output=True, timeout=SECONDS
        ).stdout

    def using(self) -> dict[str, str]:
        """This process's environment as it is now, for one of Slurm's programs."""
        return {**os.environ, **self.environment, "PATH": os.environ.get("PATH", "") + SBIN}

    def jobs(self) -> dict[int, str]:
        """The jobs that wait or run, each with its state."""
        lines = self.run("squeue", "--noheader", "--format", "%A %T").split("\n")
        return {int(job): state for job, state in (line.split() for line in lines if line)}


def missing_word() -> str | None:
    """Installs Slurm where that is needed and possible.

    Returns:
        why there is no Slurm here, or None.
    """
    if os.geteuid() != 0:
        return "Slurm's daemons need root"
    if not all(shutil.which(program, path=os.environ.get("PATH", "") + SBIN) for program in PROGRAMS):
        if shutil.which("apt-get") is None:
            return f"Slurm is not installed and there is no apt-get to install {' '.join(PACKAGES)}"
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (["update"], ["install", "--yes", "--no-install-recommends", *PACKAGES]):
            done = subprocess.run(["apt-get", *command], env=quiet, text=True, capture_output=True)
            if done.returncode:
                return f"apt-get {command[0]} failed: {(done.stderr.strip().splitlines() or ['?'])[-1]}"
    if not all(Path(f"/dev/tty{n}").exists() for n in range(1, GPUS + 1)):
        return "there are no /dev/tty files to stand for GPUs"
    return None


@contextmanager
def started() -> Iterator[Slurm]:
    """Slurm with two idle nodes; all of it is gone afterwards, jobs included."""
    if (word := missing_word()) is not None:
        pytest.skip(f"no Slurm: {word}")
    leftovers.sweep(Path("/tmp"))
    with tempfile.TemporaryDirectory(prefix=leftovers.PREFIX, dir="/tmp", ignore_cleanup_errors=True) as folder:
        leftovers.claim(Path(folder))
        slurm = _configured(Path(folder))
        with ExitStack() as running:
            key = f"--key-file={folder}/munge.key"
            paths = [f"--{name}-file={folder}/munge.{name}" for name in ("log", "pid", "seed")]
            _start(running, slurm, ["munged", "-F", "--force", key, f"--socket={folder}/munge.socket", *paths])
            _await(slurm, "munge.socket", lambda: (slurm.root / "munge.socket").exists())
            _start(running, slurm, ["slurmctld", "-D"])
            for n in range(1, NODES + 1):
                _start(running, slurm, ["slurmd", "-D", "-N", f"node{n}"])
            _await(slurm, "its nodes", lambda: _idle(slurm) == NODES)
            try:
                yield slurm
            finally:
                if jobs := slurm.jobs():
                    slurm.run("scancel", *jobs)
                    _await(slurm, "the end of its jobs", lambda: not slurm.jobs())


def _configured(root: Path) -> Slurm:
    root.chmod(0o755)  # munged refuses a folder that others may not enter, or may write
    (root / "munge.key").write_bytes(secrets.token_bytes(128))
    (root / "munge.key").chmod(0o400)
    host, ports = socket.gethostname().partition(".")[0], _free_ports(1 + NODES)
    conf, gres = [CONF.format(root=root, host=host, ports=ports, nodes=NODES)], []
    for n in range(1, NODES + 1):
        conf.append(NODE.format(n=n, host=host, port=ports[n], cpus=CPUS, memory=MEMORY, gpus=GPUS))
        gres.append(GRES.format(n=n, gpus=GPUS))
        (root / f"spool-node{n}").mkdir()
    (root / "state").mkdir()
    # Nodes are to be known before the partition that has them.
    (root / "slurm.conf").write_text("\n".join([*conf[1:], conf[0]]) + "\n")
    (root / "gres.conf").write_text("\n".join(gres) + "\n")
    return Slurm(root, {"SLURM_CONF": str(root / "slurm.conf")})


def _free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


def _start(running: ExitStack, slurm: Slurm, command: list[str]) -> None:
    """A daemon that ends with this process or, before that, with the stack."""
    log = running.enter_context((slurm.root / f"{command[0]}-{command[-1]}.said".replace("/", "-")).open("wb"))
    process = subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", *command], env=slurm.using(), stdin=subprocess.DEVNULL, stdout=log,
        stderr=log,
        start_new_session=True,  # Ctrl-C is for pytest: the daemons end after the jobs
    )  # fmt: skip

    def end() -> None:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    running.callback(end)


def _idle(slurm: Slurm) -> int:
    try:
        return len(slurm.run("sinfo", "--noheader", "--Node", "--states", "idle", "--format", "%N").split())
    except subprocess.CalledProcessError:  # the controller does not answer yet
        return 0


def _await(slurm: Slurm, what: str, is_there: object) -> None:
    assert callable(is_there)
    end = time.monotonic() + SECONDS
    while not is_there():
        if time.monotonic() > end:
            said = "\n".join(path.read_text(errors="replace")[-2000:] for path in sorted(slurm.root.glob("*.log")))
            pytest.fail(f"Slurm: {what} did not come in {SECONDS} s\n{said}")
        time.sleep(0.05)
