"""The finished runs of a study as one file: what each was, its scores, curve and costs; no weights, no ids.

    python pipelines/records.py WORK > docs/records/STUDY.jsonl

WORK is the folder that `fusionkit run STUDY.yaml --out WORK` made. A line is a run, in the order of sweeps and specs.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

LEFT_OUT = ("draw", "encoding", "labels")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("work", type=Path)
    found, work = [], parser.parse_args().work
    for path in work.glob("runs/*/*/run.json"):
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["status"] == "finished":
            kept = {name: value for name, value in record.items() if name not in LEFT_OUT}
            found.append({"sweep": path.parts[-3], "digest": path.parts[-2], **kept})
    if not found:
        parser.error(f"{work} holds no finished run; expected a folder that `fusionkit run STUDY.yaml --out` wrote")
    found.sort(key=lambda record: (record["sweep"], json.dumps(record["spec"], sort_keys=True)))
    for record in found:
        print(json.dumps(record, ensure_ascii=False))


if __name__ == "__main__":
    main()
