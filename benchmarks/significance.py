"""How often each test calls a difference significant: where there is none, and where there is one.

    python benchmarks/significance.py DATA WORK [--seeds 100] [--tables 500]

DATA holds `trec6`. MiniLM encodes it once into WORK, and 16-shot heads are fitted over it: `last`, `linear` and
`attention` with --seeds seeds each, and `attention` once more with other init seeds. Each comparison has a table of
what each test question adds to the difference, with one row per pair of runs. A study of n seeds draws n rows and 500
questions from it with replacement: fresh seeds and a fresh test set. Printed is the share of studies with p at most
0.05. There is no difference in

    attention again     the same method; the table is shifted to a mean of 0
    swapped             `attention` and `linear`, with each question swapped between the two or not at random: they are
                        equally good over all possible questions, but not over these
    rare collapses      random numbers, not runs: one run in twenty loses 20 points, and the others gain so much that
                        the mean is 0

so every significant difference there is a false alarm. Runs and stores that are in WORK already are not made again.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from fusionkit.cli.tables.sweep_table import SweepTable
from fusionkit.encode import encode
from fusionkit.encoder import load_encoder
from fusionkit.fit import RunsFolder, expand, fit
from fusionkit.runs.errors_of_means import scored_runs
from fusionkit.runs.example_scores import ExampleScores
from fusionkit.sources import guess_columns, open_source
from fusionkit.specs import EncodeSpec
from fusionkit.statistics import LEVEL, TESTS
from fusionkit.statistics.examples import Answered, two_way
from fusionkit.statistics.intervals import Floats
from fusionkit.statistics.seeds import seed_error
from fusionkit.store import is_complete, open_store

SEEDS = (3, 5, 6, 8, 10, 20)
COLLAPSE = 0.05
OTHER_INIT = 1_000_000  # added to the init seeds of the same method fitted again


def tables_of(data: Path, work: Path, seeds: int) -> dict[str, Floats]:
    """By comparison, what each test question adds to the difference of each pair of runs, ``[pairs, questions]``."""
    store = work / "trec6.store"
    if not is_complete(store):
        source = open_source(str(data / "trec6"))
        encode(source, guess_columns(source), store, EncodeSpec(rows="mean"), load_encoder("minilm", device="cpu"))
    opened, folder = open_store(store), RunsFolder(work / "runs")
    fusions = ("last", "linear", "attention")
    specs = expand(opened, fusions=fusions, shots=(16,), seeds=seeds, epochs=(20,))
    again = [replace(spec, init_seed=OTHER_INIT + spec.init_seed) for spec in specs if spec.fusion == "attention"]
    torch.set_num_threads(1)
    with SweepTable([*specs, *again]) as progress:
        fit(opened, [*specs, *again], folder, progress)
    frame = folder.frame()
    frame = frame[frame["data_seed"] < seeds]
    first = frame[frame["init_seed"] < OTHER_INIT]
    last, linear, attention = (first[first["fusion"] == name] for name in fusions)
    other, answers = frame[frame["init_seed"] >= OTHER_INIT], ExampleScores(folder.answers)

    def table(ours: pd.DataFrame, theirs: pd.DataFrame) -> Floats:
        sides = [scored_runs(runs.sort_values("data_seed")) for runs in (ours, theirs)]
        values = [[found.values for run in side for found in answers.of(run)] for side in sides]
        return np.stack(values[0]) - np.stack(values[1])

    same = table(other, attention)
    return {
        "attention again": same - same.mean(),
        "swapped": table(attention, linear),
        "attention − linear": table(attention, linear),
        "linear − last": table(linear, last),
    }


def study_of(name: str, table: Floats, n: int, rng: np.random.Generator) -> Floats:
    """The differences in a study of n fresh seeds and fresh test questions, ``[n, questions]``."""
    pairs, questions = table.shape
    if name == "swapped":
        table = table * rng.choice([-1.0, 1.0], questions)
    return table[rng.integers(pairs, size=n)][:, rng.integers(questions, size=questions)]


def collapses(n: int, rng: np.random.Generator) -> Floats:
    """Random differences of n pairs of runs, in points, with rare collapses and an expected value of 0."""
    found: Floats = rng.normal(0.0, 1.0, n) + np.where(
        rng.random(n) < COLLAPSE, -20.0, 20.0 * COLLAPSE / (1 - COLLAPSE)
    )
    return found


def alarms(draw: Callable[[np.random.Generator], Floats], n: int, tables: int) -> dict[str, float]:
    """The share of studies that find a difference, by test; ``draw`` gives a study, ``[n, questions]`` or ``[n]``."""
    rng = np.random.default_rng(n)
    counts = dict.fromkeys([*TESTS, "two-way"], 0.0)
    for _ in range(tables):
        study = draw(rng)
        by_seed = study if study.ndim == 1 else study.mean(1)
        for name, test in TESTS.items():
            counts[name] += test.p_value(by_seed) <= 1 - LEVEL
        if study.ndim == 1:
            counts["two-way"] = np.nan
        else:
            errors = two_way([Answered(study)], seed_error(by_seed, range(n), [0] * n))
            counts["two-way"] += errors.p_value(float(study.mean()), "both") <= 1 - LEVEL
    return {name: count / tables for name, count in counts.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--tables", type=int, default=500)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    for name, table in tables_of(arguments.data, arguments.work, arguments.seeds).items():
        by_pair, by_question = 100 * table.mean(1), 100 * table.mean(0)
        told = f"{by_pair.mean():+.2f} points, standard deviation {by_pair.std(ddof=1):.2f} over {len(table)} pairs"
        print(
            f"\n{name}: {told}; standard error over questions {by_question.std(ddof=1) / table.shape[1] ** 0.5:.2f}\n"
        )
        print_shares({n: alarms(partial(study_of, name, table, n), n, arguments.tables) for n in SEEDS})
    print("\nrare collapses: 0 points\n")
    print_shares({n: alarms(partial(collapses, n), n, arguments.tables) for n in SEEDS})


def print_shares(rows: dict[int, dict[str, float]]) -> None:
    names = list(rows[SEEDS[0]])
    print("| seeds | " + " | ".join(names) + " |\n|---|" + "---|" * len(names))
    for n, found in rows.items():
        print(
            f"| {n} | "
            + " | ".join("" if share != share else f"{100 * share:.0f} %" for share in found.values())
            + " |"
        )


if __name__ == "__main__":
    main()
