"""How long does a command take before its own work, compared with the imports that it needs?

    python benchmarks/start.py [--repeats N] [--before CHECKOUT] [--json]

Ten sentences are encoded by MiniLM, a head is trained on them for one epoch and predicts one text, the results of runs
are shown, and a misspelt fusion is refused; each in a process of its own. Other processes only import: nothing, torch,
torch and transformers, and torch and the module that every model of transformers imports (`import transformers` leaves
it out). The last column is the processor time of a command minus that of `import torch` (`fit`) or of
`import torch, transformers` (`encode`, `predict`). With --before the same commands of another checkout run too. The
contenders take turns, so that another process on the machine disturbs all alike. Printed are medians of processor
seconds, which a busy machine changes least, and of elapsed seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
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
NOTHING, TORCH, BOTH, MODELS = (
    "pass",
    "import torch",
    "import torch, transformers",
    "import transformers.modeling_utils",
)
IMPORTS = {
    "imports: none": [sys.executable, "-c", NOTHING],
    "imports: torch": [sys.executable, "-c", TORCH],
    "imports: torch, transformers": [sys.executable, "-c", BOTH],
    "imports: torch, transformers' models": [sys.executable, "-c", f"{TORCH}; {MODELS}"],
}
COMMANDS = {
    "fit, a misspelt fusion": [*COMMAND, "fit", "ten.store", "--fusion", "attntion", "--out", "none"],
    "results": [*COMMAND, "results", "runs"],
    "fit": [*COMMAND, "fit", "ten.store", "--fusion", "linear", "--epochs", "1", "--out", "new-runs"],
    "encode": [*COMMAND, "encode", "ten.jsonl", "--rows", "mean", "--out", "new.store", "--overwrite"],
    "predict": [*COMMAND, "predict", "runs", "question number 7"],
}
NEEDS = {"fit": "imports: torch", "encode": "imports: torch, transformers", "predict": "imports: torch, transformers"}


def taken(command: Sequence[str], folder: Path, code: Path) -> tuple[float, float]:
    """Processor and elapsed seconds of a process that imports fusionkit from the checkout ``code``."""
    environment = {**ONE_THREAD, "PYTHONPATH": str(code)}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode and "attntion" not in command:
        sys.exit(f"{' '.join(command)} failed in {code}:\n{done.stderr}")
    elapsed, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, elapsed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--before", type=Path, help="another checkout, whose commands take turns with these")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    here = Path(__file__).parents[1]
    codes = {"": here, **({", before": asked.before.resolve()} if asked.before else {})}
    contenders = {name: (command, here, NEEDS.get(name)) for name, command in IMPORTS.items()} | {
        name + which: (command, code, NEEDS.get(name))
        for name, command in COMMANDS.items()
        for which, code in codes.items()
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "ten.jsonl").write_text("".join(json.dumps(each) + "\n" for each in SENTENCES))
        for made in (
            [*COMMAND, "encode", "ten.jsonl", "--rows", "mean", "--out", "ten.store"],
            [*COMMAND, "fit", "ten.store", "--fusion", "linear", "--epochs", "1", "--out", "runs"],
        ):
            environment = {**ONE_THREAD, "PYTHONPATH": str(here)}
            subprocess.run(made, cwd=folder, env=environment, capture_output=True, check=True)
        for _ in range(asked.repeats):
            for name, (command, code, _) in contenders.items():
                shutil.rmtree(folder / "new-runs", ignore_errors=True)
                found[name].append(taken(command, folder, code))
    medians = {name: [statistics.median(times) for times in zip(*each, strict=True)] for name, each in found.items()}
    rows = {
        name: {
            "processor": processor,
            "elapsed": elapsed,
            **({"above_imports": processor - medians[needed][0]} if (needed := contenders[name][2]) else {}),
        }
        for name, (processor, elapsed) in medians.items()
    }
    if asked.json:
        print(json.dumps(rows))
        return
    print(f"{'seconds, median of ' + str(asked.repeats):40} {'processor':>10} {'elapsed':>10} {'above imports':>14}")
    for name, row in rows.items():
        above = f"{row['above_imports']:14.2f}" if "above_imports" in row else ""
        print(f"{name:40} {row['processor']:10.2f} {row['elapsed']:10.2f} {above}")


if __name__ == "__main__":
    main()
