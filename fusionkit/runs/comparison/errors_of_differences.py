"""Errors of the mean difference of two groups over seeds and over test examples, and p-values over test examples."""

from __future__ import annotations

import numpy as np

from fusionkit.runs.comparison.pairing import Pairs, Trial
from fusionkit.runs.errors_of_means import EXAMPLES, without_examples
from fusionkit.runs.example_scores import ExampleScores, ScoredRun
from fusionkit.statistics.examples import Answered, TwoWay, mcnemar_p, randomisation_p, two_way
from fusionkit.statistics.intervals import Floats


def error_of_difference(pairs: Pairs, answers: ExampleScores | None) -> TwoWay:
    """The errors of the mean difference of pairs of runs."""
    seeds = pairs.seeds
    tables = None if answers is None else _differences(pairs, answers)
    return without_examples(seeds) if tables is None else two_way(tables, seeds)


def _differences(pairs: Pairs, answers: ExampleScores) -> list[Answered] | None:
    by_set: dict[tuple[str, str], list[Floats]] = {}
    for ours, theirs in pairs.trials:
        sides = [[answers.of(_scored(trial)) for trial in side] for side in (ours, theirs)]
        known = [each for side in sides for each in side if each is not None]
        if len(known) < len(ours) + len(theirs) or len({each.examples for each in known}) > 1:
            return None
        means = [np.mean([each.values for each in side if each is not None], axis=0) for side in sides]
        by_set.setdefault((ours[0].evaluated, known[0].examples), []).append(means[0] - means[1])
    whole = sum(map(len, by_set.values()))
    return [Answered(np.stack(rows), len(rows) / whole) for rows in by_set.values()] if whole else None


def p_over_examples(pairs: Pairs, errors: TwoWay, answers: ExampleScores) -> float:
    """The p-value of swapping test examples between the sides; NaN where answers are missing. One pair of accuracies is
    tested by McNemar's test, pairs on several test sets by Student's over their examples.
    """
    matched = [(_scored(one), _scored(other)) for side, others in pairs.trials for one in side for other in others]
    ours, theirs = ([pair[side] for pair in matched] for side in (0, 1))
    sets = {(run.evaluated, known.examples) for run in ours if (known := answers.of(run))}
    if len(sets) > 1:
        return errors.p_value(float(pairs.differences.mean()), EXAMPLES)
    if (found := answers.counts([*ours, *theirs])) is None:
        return np.nan
    score, counts = found  # [2 · pairs, E, k]
    # McNemar's test is for one answer per example; a tagged sentence has several.
    if len(ours) == 1 and ours[0].metric == "accuracy" and counts.shape[2] == 2 and (counts[..., 1] == 1).all():
        return mcnemar_p(counts[0, :, 0], counts[1, :, 0])
    return randomisation_p(score, counts[: len(ours)], counts[len(ours) :])


def _scored(trial: Trial) -> ScoredRun:
    return ScoredRun(trial.digest, trial.evaluated, trial.metric, trial.counts)
