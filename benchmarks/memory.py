"""Does the peak memory of an encode depend on the size of the data, and does `fusionkit estimate` predict it?

    python benchmarks/memory.py SOURCE [--times 1 4 16] [--repeat 3] [--json]

The examples of a source's first split are written 1, 4 and 16 times over and encoded, each in a process of its own,
whose largest resident size the kernel reports. Each repetition adds a word of its own to the end of every example,
because repeated sequences would be encoded once. Equal encodes differ by some percent, depending on how the allocator
splits its memory, so the median of a few is compared.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from fusionkit.sources import Columns, Examples, guess_columns, open_source


def write_times(examples: Examples, columns: Columns, times: int, path: Path) -> None:
    """Write the examples ``times`` times as JSON lines, with a word of its own added in each repetition."""
    with path.open("w", encoding="utf-8") as file:
        for time in range(times):
            for batch in examples.batches():
                for row in batch.to_pylist():
                    if columns.tokens:
                        row[columns.tokens].append(str(time))
                        for name in columns.tags:
                            row[name].append("O")
                    else:
                        row[columns.text] += f" {time}"
                    file.write(json.dumps(row, ensure_ascii=False) + "\n")


def peak_mb(source: Path, store: Path) -> float:
    """Largest resident size of `fusionkit encode`, in MB."""
    command = [sys.executable, "-m", "fusionkit", "encode", str(source), "--out", str(store), "--overwrite"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"encode of {source} failed with exit {process.returncode}")
    return usage.ru_maxrss * 1024 / 1e6


def estimated_mb(source: Path) -> float:
    """Peak memory that `fusionkit estimate` predicts for the source, in MB."""
    command = [sys.executable, "-m", "fusionkit", "estimate", str(source), "--json"]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(json.loads(told)["memory"]) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("source")
    parser.add_argument("--times", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--repeat", type=int, default=3, help="encodes of each size")
    parser.add_argument("--json", action="store_true", help="print one object of named ratios last")
    options = parser.parse_args()
    source = open_source(options.source)
    examples, columns = next(iter(source.splits.values())), guess_columns(source)
    peaks, estimates = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for times in options.times:
            place = Path(folder) / f"times{times}"
            place.mkdir()
            write_times(examples, columns, times, place / "train.jsonl")
            store = Path(folder) / f"times{times}.store"
            estimates[times] = estimated_mb(place)
            found = sorted(peak_mb(place, store) for _ in range(options.repeat))
            peaks[times] = statistics.median(found)
            size = sum(path.stat().st_size for path in store.rglob("*") if path.is_file())
            print(
                f"{times:3} ×: peak {peaks[times]:7,.0f} MB ({found[0]:,.0f} … {found[-1]:,.0f}), estimated "
                f"{estimates[times]:,.0f}, for a store of {size / 1e6:,.0f} MB",
                flush=True,
            )
    first = peaks[options.times[0]]
    if options.json:
        ratios = {f"peak_at_{times}_over_first": peak / first for times, peak in peaks.items()}
        ratios |= {f"estimate_at_{times}_over_peak": estimates[times] / peak for times, peak in peaks.items()}
        print(json.dumps({name: round(ratio, 3) for name, ratio in ratios.items()}))


if __name__ == "__main__":
    main()
