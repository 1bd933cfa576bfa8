"""Is an encode's peak memory independent of how much there is to encode?

    python benchmarks/memory.py CONLL_FILE [--times 1 4 16] [--json]

The same sentences are repeated 1, 4 and 16 times over and encoded, each in a process of its own, whose
largest resident size the kernel reports. Repeats lie in different parts, so each is encoded again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path


def peak_mb(source: Path, store: Path) -> float:
    """Largest resident size of `fusionkit encode`, in MB."""
    command = [sys.executable, "-m", "fusionkit", "encode", str(source), "--out", str(store)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"encode of {source} failed with exit {process.returncode}")
    return usage.ru_maxrss / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("--times", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--json", action="store_true", help="print one object of named ratios last")
    options = parser.parse_args()
    text = options.source.read_text(encoding="utf-8").rstrip("\n") + "\n\n"
    peaks = {}
    with tempfile.TemporaryDirectory() as folder:
        for times in options.times:
            source = Path(folder) / f"times{times}" / "train.txt"
            source.parent.mkdir()
            source.write_text(text * times, encoding="utf-8")
            store = Path(folder) / f"times{times}.store"
            peaks[times] = peak_mb(source.parent, store)
            size = sum(path.stat().st_size for path in store.rglob("*") if path.is_file())
            print(f"{times:3} ×: peak {peaks[times]:7,.0f} MB for a store of {size / 1e6:7,.0f} MB", flush=True)
    first = peaks[options.times[0]]
    if options.json:
        print(json.dumps({f"peak_at_{times}_over_first": round(peak / first, 3) for times, peak in peaks.items()}))


if __name__ == "__main__":
    main()
