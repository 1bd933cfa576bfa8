"""Bitwise equal results for any number of threads, on Intel's CPUs too.

PyTorch's float32 products are computed by MKL. On Intel's CPUs their last bits depend on the number of threads, unless
MKL's mode of conditional numerical reproducibility is strict. MKL reads the variable at its first product. On AMD's
CPUs the last bits are the same without the mode (tests/encode/test_encode_batches.py), so it is not set there.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path

MODE, STRICT = "MKL_CBWR", "AUTO,STRICT"
INTEL = b"GenuineIntel"
FIRST_BYTES = 512  # the vendor is on the second line, and the file is long on a large machine


def ask_for_the_same_bits(environment: MutableMapping[str, str], cpuinfo: Path = Path("/proc/cpuinfo")) -> None:
    """Set MKL's strict mode on Intel's CPUs; a mode that the user has set stays."""
    try:
        with cpuinfo.open("rb") as file:
            is_intel = INTEL in file.read(FIRST_BYTES)
    except OSError:
        return
    if is_intel:
        environment.setdefault(MODE, STRICT)
