"""MKL's strict mode is for Intel's CPUs alone; tests/encode/test_encode_batches.py shows there that it works."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusionkit.machine.reproducible import ask_for_the_same_bits


@pytest.mark.parametrize(
    ("vendor", "own", "found"),
    [
        ("GenuineIntel", {}, {"MKL_CBWR": "AUTO,STRICT"}),
        ("GenuineIntel", {"MKL_CBWR": "COMPATIBLE"}, {"MKL_CBWR": "COMPATIBLE"}),
        ("AuthenticAMD", {}, {}),
    ],
)
def test_strict_mode_is_for_intel_and_the_users_own_stays(
    tmp_path: Path, vendor: str, own: dict[str, str], found: dict[str, str]
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: 6\n")
    ask_for_the_same_bits(own, cpuinfo)
    assert own == found


def test_a_system_without_the_file_is_left_alone(tmp_path: Path) -> None:
    environment: dict[str, str] = {}
    ask_for_the_same_bits(environment, tmp_path / "cpuinfo")
    assert environment == {}
