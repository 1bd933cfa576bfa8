"""Errors of the mean difference of two groups over seeds and over test examples, and p-values over test examples."""

from __future__ import annotations

import numpy as np

from fusionkit.runs.comparison.pairing import Pairs, Trial
from fusionkit.runs.errors_of_means import EXAMPLES, tables_of, without_examples
from fusionkit.runs.example_scores import ExampleScores, OnTest, ScoredRun
from fusionkit.statistics.examples import Answered, TwoWay, mcnemar_p, randomisation_p, two_way


def error_of_difference(pairs: Pairs, answers: ExampleScores | None) -> TwoWay:
    """The errors of the mean difference of pairs of runs."""
    seeds = pairs.seeds
    tables = [] if answers is None else _differences(pairs, answers)
    return two_way(tables, seeds) if tables else without_examples(seeds)


def _differences(pairs: Pairs, answers: ExampleScores) -> list[Answered]:
    """A table for each test set; none where answers are missing, or a pair answered different examples."""
    found = list[tuple[int, str, OnTest]]()
    for row, ((ours, theirs), weight) in enumerate(zip(pairs.trials, pairs.weights.tolist(), strict=True)):
        sides = [[answers.of(_scored(trial)) for trial in side] for side in (ours, theirs)]
        examples = {tuple(one.examples for one in sets) for side in sides for sets in side}
        if len(examples) > 1 or () in examples:
            return []
        for at, each in enumerate(sides[0][0]):
            means = [np.mean([sets[at].values for sets in side], axis=0) for side in sides]
            added = each._replace(values=means[0] - means[1], share=weight * each.share)
            found.append((row, ours[0].evaluated, added))
    return tables_of(found)


def p_over_examples(pairs: Pairs, errors: TwoWay, answers: ExampleScores) -> float:
    """The p-value of swapping test examples between the sides; NaN where answers are missing. One pair of accuracies is
    tested by McNemar's test, pairs on several test sets by Student's over their examples.
    """
    matched, weights = list[tuple[ScoredRun, ScoredRun]](), list[float]()
    for (side, others), weight in zip(pairs.trials, pairs.weights.tolist(), strict=True):
        met = [(_scored(one), _scored(other)) for one in side for other in others]
        matched += met
        weights += [weight / len(met)] * len(met)
    ours, theirs = ([pair[side] for pair in matched] for side in (0, 1))
    sets = {(run.evaluated, each.examples) for run in ours for each in answers.of(run)}
    if len(sets) > 1:
        return errors.p_value(float(pairs.differences.mean()), EXAMPLES)
    if (found := answers.counts([*ours, *theirs])) is None:
        return np.nan
    score, counts = found  # [2 · pairs, E, k]
    # McNemar's test is for one answer per example; a tagged sentence has several.
    if len(ours) == 1 and ours[0].metric == "accuracy" and counts.shape[2] == 2 and (counts[..., 1] == 1).all():
        return mcnemar_p(counts[0, :, 0], counts[1, :, 0])
    return randomisation_p(score, counts[: len(ours)], counts[len(ours) :], np.array(weights))


def _scored(trial: Trial) -> ScoredRun:
    return ScoredRun(trial.digest, trial.evaluated, trial.metric, trial.counts, trial.stores)
