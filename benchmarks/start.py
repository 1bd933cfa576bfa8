"""What does a command take before its own work, beside the imports that it cannot do without?

    python benchmarks/start.py [--repeats N] [--json]

Ten sentences are encoded by MiniLM, a head is trained on them for one epoch and predicts one text, and a misspelt
fusion is refused; each in a process of its own. Beside each command stands a process that only imports what it needs:
torch, and for `encode` and `predict` the module of transformers that every model of it imports, too. The contenders
take turns, so that another process on the machine disturbs all alike. Printed are medians of processor seconds, which
a busy machine changes least, and of elapsed ones.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}
SENTENCES = [{"text": f"{what} number {n}", "label": what} for what in ("question", "answer") for n in range(5)]
COMMAND = [sys.executable, "-m", "fusionkit"]
NOTHING, TORCH, MODELS = "pass", "import torch", "import torch, transformers.modeling_utils"
CONTENDERS: dict[str, Sequence[str]] = {
    "imports: none": [sys.executable, "-c", NOTHING],
    "imports: torch": [sys.executable, "-c", TORCH],
    "imports: torch, transformers' models": [sys.executable, "-c", MODELS],
    "fit, a misspelt fusion": [*COMMAND, "fit", "ten.store", "--fusion", "attntion", "--out", "none"],
    "results": [*COMMAND, "results", "runs"],
    "fit": [*COMMAND, "fit", "ten.store", "--fusion", "linear", "--epochs", "1", "--out", "new-runs"],
    "encode": [*COMMAND, "encode", "ten.jsonl", "--rows", "mean", "--out", "new.store", "--overwrite"],
    "predict": [*COMMAND, "predict", "runs", "question number 7"],
}


def taken(command: Sequence[str], folder: Path) -> tuple[float, float]:
    """Processor and elapsed seconds of a process."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, cwd=folder, env=ONE_THREAD, capture_output=True, check=False)
    elapsed, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, elapsed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in CONTENDERS}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "ten.jsonl").write_text("".join(json.dumps(each) + "\n" for each in SENTENCES))
        for made in (
            [*COMMAND, "encode", "ten.jsonl", "--rows", "mean", "--out", "ten.store"],
            [*COMMAND, "fit", "ten.store", "--fusion", "linear", "--epochs", "1", "--out", "runs"],
        ):
            subprocess.run(made, cwd=folder, env=ONE_THREAD, capture_output=True, check=True)
        for _ in range(asked.repeats):
            for name, command in CONTENDERS.items():
                subprocess.run(["rm", "-rf", "new-runs"], cwd=folder, check=True)
                found[name].append(taken(command, folder))
    medians = {name: [statistics.median(times) for times in zip(*each, strict=True)] for name, each in found.items()}
    if asked.json:
        print(
            json.dumps({name: dict(zip(("processor", "elapsed"), each, strict=True)) for name, each in medians.items()})
        )
        return
    print(f"{'seconds, median of ' + str(asked.repeats):40} {'processor':>10} {'elapsed':>10}")
    for name, (processor, elapsed) in medians.items():
        print(f"{name:40} {processor:10.2f} {elapsed:10.2f}")


if __name__ == "__main__":
    main()
