"""Workers as Slurm jobs: a scheduler in this process, and one job per worker.

``sbatch`` is called directly, not through dask-jobqueue 0.9.0: there a refused job is a traceback in a log while the
client waits, a path with a space breaks the job's script, and lost workers return only as a side effect of timeouts.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from distributed import Client, Scheduler, SchedulerPlugin

from fusionkit.cluster import slurm_commands
from fusionkit.cluster.certificates import FILES, certified
from fusionkit.cluster.dask_config import started
from fusionkit.cluster.job_script import job_script, log_file
from fusionkit.cluster.protocol import WorkerCount
from fusionkit.cluster.settings import LOOPBACK, ClusterSettings
from fusionkit.errors import FusionkitError, StoppedError
from fusionkit.io.files import disk_errors
from fusionkit.plural import counted

FIRST_LOOK, LAST_LOOK = 1.0, 30.0  # seconds between two questions to Slurm: doubled while nothing changes
# Jobs in a row that end before their workers connect, after which to give up where no other job runs. One is enough
# where there never was a worker and no job waits. While jobs wait it takes as many as there are workers, because one
# broken node takes job after job.
STARTS = 3
DISCONNECTED = 30.0  # seconds after which a job is cancelled that runs, but whose worker has disconnected
LOG_BYTES, LOG_LINES = 4000, 12
GONE_SECONDS = 10.0
UNREACHED = f"the scheduler listens on {LOOPBACK}, which no other machine reaches: set interface or host"
# Slurm's reasons for which a job would wait forever.
HOPELESS = {
    "PartitionConfig", "PartitionTimeLimit", "PartitionNodeLimit", "BadConstraints", "AccountNotAllowed",
    "QOSNotAllowed", "InvalidAccount", "InvalidQOS", "AssocMaxWallDurationPerJobLimit", "QOSMaxWallDurationPerJobLimit",
}  # fmt: skip


class Arrivals(SchedulerPlugin):
    """The numbers of all jobs that were ever workers. A look at the scheduler would miss those that came and went
    before it, as workers do whose time ends while a store is planned.
    """

    def __init__(self) -> None:
        self.jobs: set[int] = set()

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        if (name := str(scheduler.workers[worker].name)).isdecimal():
            self.jobs.add(int(name))


class SlurmCluster:
    """See :class:`fusionkit.cluster.protocol.Cluster`.

    Args:
        scheduler: in this process. name: of all jobs of this cluster, and of no other job.
    """

    def __init__(self, client: Client, scheduler: Scheduler, settings: ClusterSettings, name: str, script: str) -> None:
        self.client, self.count, self.workers = client, WorkerCount(client), settings.workers or 1
        self._scheduler, self._settings, self._name, self._script = scheduler, settings, name, script
        self._jobs: set[int] = set()  # submitted, and not known to have ended
        self._arrived: dict[int, float] = {}  # jobs of these that became workers: when each was last seen
        self.arrivals = Arrivals()
        self._dead_starts: list[int] = []  # jobs that ended before they were workers, since the last that became one
        self._waiting: dict[int, slurm_commands.JobState] = {}  # jobs that waited at the last look
        self._hopeless: set[int] = set()
        self._pause, self._next_look = FIRST_LOOK, 0.0

    def start(self) -> None:
        """Submit a job for every worker that has none.

        Raises:
            UsageError: Slurm refuses one.
        """
        while len(self._jobs) < self.workers:
            self._jobs.add(slurm_commands.submit(self._name, self._script))

    def heal(self) -> None:
        """See the protocol.

        Raises:
            FusionkitError: jobs end before their workers connect, or would wait forever; the message has the job's log
                or Slurm's reason.
        """
        if not self.count.look():
            return
        now = time.monotonic()
        here = self._workers_here()
        self.arrivals.jobs |= here
        if here - self._arrived.keys():
            self._dead_starts, self._pause = [], FIRST_LOOK
        self._arrived.update(dict.fromkeys(here, now))
        if len(here) >= self.workers:
            self._pause, self._next_look, self._waiting = FIRST_LOOK, 0.0, {}
            return
        if now < self._next_look or (found := slurm_commands.active(self._name)) is None:
            return
        self._next_look, self._pause = now + self._pause, min(2 * self._pause, LAST_LOOK)
        running = {number for number, job in found.items() if job.state != "COMPLETING"}
        self._waiting = {number: job for number, job in found.items() if job.state == "PENDING"}
        before, self._hopeless = self._hopeless, {n for n, job in found.items() if job.reason in HOPELESS}
        if before & self._hopeless:  # seen twice: the first reason of a new job may be wrong
            raise self._failed("a job in Slurm's queue can never start")
        stuck = {n for n in running & self._arrived.keys() - here if now - self._arrived[n] > DISCONNECTED}
        if stuck and not slurm_commands.try_cancel(self._name, tuple(stuck)):
            stuck = set()  # the next look tries again
        self._replace((self._jobs - running) | stuck, here)

    def _replace(self, ended: set[int], here: set[int]) -> None:
        """Submit new jobs for ended ones: at once for lost workers, ever later for jobs that never became workers."""
        dead = sorted(ended - self.arrivals.jobs)
        self._dead_starts += dead
        self._jobs -= ended
        for number in ended:
            self._arrived.pop(number, None)
        enough = max(STARTS, self.workers) if self._jobs else STARTS if self.arrivals.jobs else 1
        if dead and not here and not self._jobs - self._waiting.keys() and len(self._dead_starts) >= enough:
            raise self._failed("the jobs end before their workers connect")
        if ended and not dead:
            self._pause = FIRST_LOOK
        try:
            self.start()
        except StoppedError:
            raise
        except FusionkitError:
            if not (here or self._jobs):
                raise
            # The other workers go on; the jobs are submitted at the next look.

    def explain(self) -> str | None:
        """The end of the log of the last job that failed to start, or why jobs wait."""
        if self._dead_starts:
            number = self._dead_starts[-1]
            log = log_file(self._settings, self._name, number)
            unreached = f"; {UNREACHED}" if self._is_unreachable() and not self.arrivals.jobs else ""
            return f"job {number} ended with: {_end_of(log)} ({log}){unreached}"
        if (job := next(iter(self._waiting.values()), None)) is not None:
            return f"a job is {job.state} in Slurm's queue: {job.reason}"
        return UNREACHED if self._is_unreachable() else None

    def _is_unreachable(self) -> bool:
        return self._settings.interface is None and self._settings.host == LOOPBACK

    def cancel(self) -> None:
        """Cancel all jobs, and wait up to :data:`GONE_SECONDS` until Slurm has ended them."""
        with contextlib.suppress(FusionkitError):
            slurm_commands.cancel(self._name)
            end = time.monotonic() + GONE_SECONDS
            while slurm_commands.active(self._name) and time.monotonic() < end:
                time.sleep(0.1)
        self._jobs.clear()

    def _workers_here(self) -> set[int]:
        return {int(name) for name in map(str, list(self._scheduler.aliases)) if name.isdecimal()}

    def _failed(self, what: str) -> FusionkitError:
        return FusionkitError(
            what,
            expected=counted(self.workers, "worker"),
            received=self.explain(),
            remedy="look at the job that --print-job shows, mend --cluster-config, and run the same command again",
        )


@contextmanager
def open_slurm(settings: ClusterSettings) -> Iterator[SlurmCluster]:
    """Start a scheduler in this process, and one job per worker; leaving the block ends all of them.

    Raises:
        UsageError: there is no Slurm, or it refuses the job. FusionkitError: the log folder cannot be made.
    """
    name, gpus = f"fusionkit-{uuid.uuid4().hex[:8]}", _gpus(settings)
    log = log_file(settings, name, 0)
    with disk_errors(log):
        log.parent.mkdir(parents=True, exist_ok=True)
    with certified(settings, log.parent) as settings, started(settings, {}) as (running, client):
        assert isinstance(running.scheduler, Scheduler)
        script = job_script(settings, name, running.scheduler_address, gpus)
        cluster = SlurmCluster(client, running.scheduler, settings, name, script)
        running.scheduler.add_plugin(cluster.arrivals)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.cancel()  # first of all: finished work is kept already, the rest is given up


def printed_job(settings: ClusterSettings) -> str:
    """The script that a worker's job would have; nothing is started."""
    temporary = {} if settings.tls or settings.public else {name: f"FOLDER/{file}" for name, file in FILES.items()}
    address = f"{'tcp' if settings.public and not settings.tls else 'tls'}://SCHEDULER:PORT"
    return job_script(settings, "fusionkit", address, _gpus(settings), temporary)


def _gpus(settings: ClusterSettings) -> int:
    return int(slurm_commands.offers_gpus(settings.partition)) if settings.gpus is None else settings.gpus


def _end_of(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - LOG_BYTES))
            lines = file.read().decode(errors="replace").strip().splitlines()[-LOG_LINES:]
    except OSError as error:
        return f"no log ({error.strerror})"
    return " | ".join(line.strip() for line in lines) or "an empty log"
