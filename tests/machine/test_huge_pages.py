from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from fusionkit.fit import RunsFolder
from fusionkit.fit.executor.worker_pool import WorkerPool
from fusionkit.machine.huge_pages import TUNABLES, with_huge_pages

# More than the largest piece that the C library takes from its heap, 32 MB; then, whether huge pages were asked for.
ASKED = """
held = bytearray(64 << 20)
print(any("hg" in line.split() for line in open("/proc/self/smaps") if line.startswith("VmFlags")))
"""
NEW = ("glibc", "2.35")


def test_tunables_of_the_user_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: NEW)
    assert with_huge_pages({}) == {TUNABLES: "glibc.malloc.hugetlb=1"}
    assert with_huge_pages({TUNABLES: "glibc.malloc.check=1"}) == {
        TUNABLES: "glibc.malloc.check=1:glibc.malloc.hugetlb=1"
    }
    assert with_huge_pages({TUNABLES: "glibc.malloc.hugetlb=0"}) == {}


@pytest.mark.parametrize("library", [("glibc", "2.34"), ("musl", "1.2.5"), ("", "")])
def test_a_c_library_without_the_tunable_is_asked_for_nothing(
    library: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: library)
    assert with_huge_pages({}) == {}


@pytest.mark.skipif(not with_huge_pages({}), reason="the C library has no such tunable")
def test_a_process_asks_for_huge_pages() -> None:
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not setting.exists() or "[madvise]" not in setting.read_text():
        pytest.skip("the kernel does not wait to be asked for huge pages")
    plain = {name: value for name, value in os.environ.items() if name != TUNABLES}
    for environment, expected in ((plain, "False"), ({**plain, **with_huge_pages({})}, "True")):
        done = subprocess.run(
            [sys.executable, "-c", ASKED], env=environment, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == expected


def test_workers_that_train_have_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: NEW)
    monkeypatch.delenv(TUNABLES, raising=False)
    pool = WorkerPool(1, {}, RunsFolder(tmp_path), lambda _: None)
    assert pool._environment[TUNABLES] == "glibc.malloc.hugetlb=1"
