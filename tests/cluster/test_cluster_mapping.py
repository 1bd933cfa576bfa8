"""One function over many items: each done once or set aside, whatever happens to the workers."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusionkit.cluster import Cluster
from fusionkit.cluster.task_map import AHEAD, LEAST, FailedItem, each_done
from fusionkit.errors import FusionkitError, UsageError

Pids = Callable[[], list[int]]


def refused(failed: FailedItem[int]) -> None:
    raise AssertionError(f"{failed.item} is set aside: {failed.error}")


def test_every_item_is_done_once_and_few_are_known_to_the_scheduler_at_a_time(cluster: Cluster) -> None:
    found: dict[int, int] = {}
    taken: list[int] = []
    most = 0

    def items() -> Any:
        for item in range(200):
            taken.append(item)
            yield item

    for item, record in each_done(cluster, lambda item: item * item, items(), on_aside=refused):
        most = max(most, len(taken) - len(found))
        assert item not in found
        found[item] = record
    assert found == {item: item * item for item in range(200)}
    assert most <= max(AHEAD * cluster.workers, LEAST)


def test_a_function_that_fails_is_tried_three_times_and_the_others_go_on(cluster: Cluster, tmp_path: Path) -> None:
    def work(item: int) -> int:
        with (tmp_path / str(item)).open("a") as file:
            file.write("x")
        tries = len((tmp_path / str(item)).read_text())
        if item == 7 or (item == 9 and tries < 3):
            raise UsageError(f"item {item}", expected="another", remedy="none")
        return item

    aside: list[FailedItem[int]] = []
    done = [item for item, _ in each_done(cluster, work, range(20), on_aside=aside.append)]
    assert sorted(done) == [item for item in range(20) if item != 7]
    assert [(each.item, each.attempts) for each in aside] == [(7, 3)]
    error = aside[0].error
    assert isinstance(error, UsageError)
    assert (error.what, error.expected, error.remedy, error.exit_code) == ("item 7", "another", "none", 2)
    assert str(error) == "item 7\n  expected: another\n  remedy:   none"
    tries = {item: len((tmp_path / str(item)).read_text()) for item in range(20)}
    assert tries == {item: 3 if item in (7, 9) else 1 for item in range(20)}


def test_what_fails_everywhere_ends_the_work_at_once(cluster: Cluster, tmp_path: Path) -> None:
    def work(item: int) -> int:
        (tmp_path / str(item)).touch()
        raise ValueError(f"item {item}")

    with pytest.raises(ValueError, match="item "):
        list(each_done(cluster, work, range(1000), on_aside=lambda _: None))
    assert len(list(tmp_path.iterdir())) < 100


def test_a_hopeless_error_is_raised_as_it_came_and_its_item_is_not_tried_again(
    cluster: Cluster, tmp_path: Path
) -> None:
    def work(item: int) -> int:
        if item == 5:
            with (tmp_path / "tries").open("a") as file:
                file.write("x")
            raise FusionkitError("the disk is full", received="no space")
        return item

    working = each_done(
        cluster, work, range(50), on_aside=refused, hopeless=lambda error, attempt: isinstance(error, FusionkitError)
    )
    with pytest.raises(FusionkitError, match="the disk is full") as caught:
        list(working)
    assert caught.value.received == "no space"
    assert (tmp_path / "tries").read_text() == "x"


# Dask sometimes leaves a half-open connection to a killed worker to the garbage collector.
@pytest.mark.filterwarnings("ignore:Exception ignored in. <ssl.SSLSocket:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.soak("kills")
def test_a_task_whose_worker_is_killed_again_and_again_is_not_to_blame(
    cluster: Cluster, tmp_path: Path, pids: Pids
) -> None:
    """Four deaths: more than the attempts that a function has."""
    deaths = tmp_path / "deaths"
    deaths.touch()

    def work(item: int) -> int:
        if item == 3 and len(deaths.read_text()) < 4:
            with deaths.open("a") as file:
                file.write("x")
            os.kill(os.getpid(), signal.SIGKILL)
        return item

    before = cluster.count.lost
    done = sorted(item for item, _ in each_done(cluster, work, range(10), on_aside=refused))
    assert done == list(range(10))
    assert deaths.read_text() == "xxxx"
    assert cluster.count.lost > before
    assert len(pids()) == 2


def test_who_is_asked_between_two_looks_can_end_the_work(cluster: Cluster) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(each_done(cluster, lambda item: item, range(10**9), on_aside=refused, tick=stop))
