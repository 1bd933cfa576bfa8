"""Groups of runs against a baseline: paired differences, their interval, p-values, wins, ties and losses.

A group is compared with the group that has the baseline's values in the columns that the baseline fixes, and the
group's own values in the others. With ``--by label --by fusion --baseline last``, each fusion of a label is compared
with ``last`` of that label.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from fusionkit.errors import UsageError, unknown_name
from fusionkit.names import BLOCKS
from fusionkit.options.comparison import baseline_parts
from fusionkit.plural import counted
from fusionkit.runs.comparison.errors_of_differences import error_of_difference, p_over_examples
from fusionkit.runs.comparison.pairing import DATA, DATA_SEED, Pairs, pair_runs, sides_of
from fusionkit.runs.errors_of_means import BOTH, EXAMPLES, interval_of_mean
from fusionkit.runs.errors_of_means import SEEDS as SEEDS_ALONE
from fusionkit.runs.example_scores import ExampleScores
from fusionkit.runs.floors import are_floors
from fusionkit.runs.note_texts import value_text
from fusionkit.runs.summary import AXES, EMPTY_OF_FLOORS, OVER, SEEDS, TUNED, RunGroups, summarise, varies
from fusionkit.statistics import CORRECTIONS, LEVEL, TESTS, corrected

NO_VALUE = "none"
PERMUTATION, STUDENT = "permutation", "t"
STARS = {0.001: "***", 0.01: "**", 0.05: "*"}  # the mark of a p-value that does not exceed this level
HOW = "how"  # key of a comparison's attrs: its interval, test, correction, block and what they are over
COMPARED = (
    "baseline", "is_baseline", "difference", "difference_low", "difference_high", "difference_se_seeds",
    "difference_se_examples", "p", "p_corrected", "smallest_p",
    "significant", "wins", "ties", "losses", "pairs", "blocks", "unpaired", "also_differs",
)  # fmt: skip


def compare(
    groups: RunGroups,
    baseline: str,
    *,
    interval: str = "t",
    test: str | None = None,
    correction: str = "holm",
    over: str | None = None,
    block: str = DATA_SEED,
    simultaneous: bool = False,
) -> pd.DataFrame:
    """One row per group, as :func:`summarise` gives it, with its difference to the baseline.

    Args:
        groups: the runs. Runs that differ only in what validation chose may be a pair.
        baseline: a value of the first of ``groups.by`` (of ``fusion`` without it), a value that only one other column
            has, or ``fusion=last,lr=0.002``.
        interval: ``t`` or ``bootstrap``. test: the test over seeds, ``permutation``, ``bootstrap`` or ``t``; None is
            permutation. correction: ``holm``, ``bonferroni``, ``fdr`` or ``none``, over all comparisons of the table.
        over: as for :func:`summarise`, and for p-values too: ``both`` is a two-way test, ``examples`` swaps test
            examples, ``seeds`` is ``test``. With a ``test``, or with ``block="data"``, None means seeds.
        block: ``data_seed``, or ``data``: each data set gives one difference, and intervals and tests are over other
            data sets.
        simultaneous: whether intervals of differences hold for all comparisons of the table together (Bonferroni).

    Returns:
        the summary's columns, then ``baseline`` (what the row is compared with) and ``is_baseline``; mean paired
        ``difference`` with ``difference_low`` and ``difference_high`` of its 95 % interval and its standard errors
        ``difference_se_seeds`` and ``difference_se_examples``; ``p``, ``p_corrected``, ``smallest_p`` (the least
        p-value that this number of blocks can give) and ``significant`` (``p_corrected`` at most 0.05); ``wins``,
        ``ties``, ``losses`` of ``pairs`` in ``blocks``; ``unpaired`` runs; ``also_differs``, the axes in which the two
        differ besides the baseline's. A group with fewer than two blocks has no interval and no p-value, unless they
        are over examples alone.
        UsageError for an unknown name, a baseline without runs or pairs, or, unless over examples, a single block
        throughout.
    """
    if test is not None and test not in TESTS:
        raise unknown_name("test", test, TESTS)
    if correction not in CORRECTIONS:
        raise unknown_name("correction", correction, CORRECTIONS)
    check_over(over, interval, test, block, simultaneous)
    of_seeds = test is not None or block == DATA
    table = summarise(groups, interval, SEEDS_ALONE if of_seeds else over, of_means=block == DATA)
    over = str(table.attrs[OVER])
    keys, runs, chosen = groups.keys, groups.runs, groups.chosen
    bare = "fusion" if not groups.by and "fusion" in keys else keys[0]  # the column of a baseline that names none
    fixed = _read_baseline(baseline, table, keys, bare, list(groups.frame.columns))
    labels = [tuple(map(value_text, values)) for values in table[keys].itertuples(index=False, name=None)]
    places = {label: place for place, label in enumerate(labels)}
    against = [_against(label, keys, fixed, places) for label in labels]
    if not set(against) & set(labels):
        raise UsageError(f"no run has {_written(fixed)} together", received=baseline, remedy="choose another baseline")
    # The row number of each group that is compared → that of the group that it is compared with.
    others = {place: places[label] for place, label in enumerate(against) if label in places and label != labels[place]}
    sides = sides_of(runs)
    found = {ours: pair_runs(sides[ours], sides[other], list(fixed), chosen, block) for ours, other in others.items()}
    names = [_written(dict(zip(keys, label, strict=True))) for label in labels]
    _check(found, others, groups, names, fixed, over)
    # Floors have a difference and no test: more tests would raise the corrected p-values of the heads.
    floors = {place for place, group in enumerate(runs) if are_floors(group).all()}
    least = 1 if over == EXAMPLES else 2  # differences that have a p-value
    tested = [place for place in found if place not in floors and len(found[place].differences) >= least]
    several = len(tested) if simultaneous else 1
    level = 1 - (1 - LEVEL) / max(several, 1)  # Bonferroni's, if several intervals are to hold together
    if any(pairs.seeds.crossed for pairs in found.values()):
        # Sign flips and the bootstrap take blocks as independent, which those of crossed draws and init seeds are not.
        interval, test = STUDENT, STUDENT
    judged = {"interval": interval, "test": test or PERMUTATION, "over": over}
    answers = None if block == DATA else groups.answers
    rows = list[dict[str, object]]()
    for place, label in enumerate(labels):
        row = {"baseline": _written(fixed), "is_baseline": label == against[place], "unpaired": 0}
        if place in found:
            row |= _compared(found[place], **judged, level=level, answers=answers, tested=place not in floors)
        elif label != against[place]:  # without a baseline no run has a partner
            row["unpaired"] = int((runs[place]["status"] == "finished").sum())
        rows.append(row)
    extra = pd.DataFrame(rows, columns=list(COMPARED))
    extra["p_corrected"] = corrected(extra["p"].to_numpy(dtype=np.float64), correction)
    extra["significant"] = extra["p_corrected"] <= 1 - LEVEL
    # Int64 has missing values: with int64, counts that some rows lack would become floats.
    extra = extra.astype(dict.fromkeys(("wins", "ties", "losses", "pairs", "blocks", "unpaired"), "Int64"))
    whole = pd.concat([table, extra], axis=1)
    told = {**judged, "correction": correction, "block": block, "simultaneous": simultaneous}
    whole.attrs |= table.attrs | {HOW: told}
    return whole


def _against(
    label: tuple[str, ...], keys: Sequence[str], fixed: Mapping[str, str], places: Mapping[tuple[str, ...], int]
) -> tuple[str, ...]:
    """The group that a group is compared with. A floor has no learning rate and no other value in ``EMPTY_OF_FLOORS``:
    where the baseline is a floor, the group without these values is meant.
    """
    wanted = tuple(fixed.get(key, value) for key, value in zip(keys, label, strict=True))
    plain = tuple(
        NO_VALUE if key in EMPTY_OF_FLOORS and key not in fixed else value
        for key, value in zip(keys, wanted, strict=True)
    )
    return plain if wanted not in places and plain in places else wanted


def _compared(
    pairs: Pairs, *, interval: str, test: str, over: str, level: float, answers: ExampleScores | None, tested: bool
) -> dict[str, object]:
    """A group's differences; arguments as for :func:`compare`. Without ``tested`` there is no p-value."""
    differences, (won, tied, lost) = pairs.differences, pairs.outcomes
    n, errors = len(differences), error_of_difference(pairs, answers)
    mean = float(np.mean(differences)) if n else np.nan
    over = over if errors.test_examples else SEEDS_ALONE
    half = errors.half(over, level)
    low, high = interval_of_mean(interval, mean, half, differences, errors.seeds)
    p, by_seeds = np.nan, TESTS[test]
    if tested and over == EXAMPLES and n and answers is not None:
        p = p_over_examples(pairs, errors, answers)
    elif tested and n > 1:
        by_student = over == BOTH or test == STUDENT
        p = errors.p_value(mean, over) if by_student else by_seeds.p_value(differences)
    return {
        "difference": mean,
        "difference_low": low,
        "difference_high": high,
        "difference_se_seeds": errors.of_seeds,
        "difference_se_examples": errors.of_examples,
        "p": p,
        "smallest_p": by_seeds.smallest(n) if tested and n > 1 and over == SEEDS_ALONE else np.nan,
        "wins": won,
        "ties": tied,
        "losses": lost,
        "pairs": len(pairs.ours),
        "blocks": n,
        "unpaired": pairs.unpaired,
        "also_differs": ", ".join(pairs.differs) or None,
    }


def check_over(over: str | None, interval: str, test: str | None, block: str, simultaneous: bool) -> None:
    """Refuse choices that do not go together (UsageError)."""
    if block not in BLOCKS:
        raise unknown_name("block", block, BLOCKS)
    if over not in (None, SEEDS_ALONE):
        for name, given in (("--test", test), ("--interval", "" if interval == "t" else interval)):
            if given:
                raise UsageError(
                    f"{name} {given} can only compare over seeds",
                    received=f"--over {over}",
                    remedy=f"choose --over seeds, or leave {name} out",
                )
        if block == DATA:
            raise UsageError(
                "with --block data each data set counts as one difference",
                received=f"--over {over}",
                remedy="leave --over out, or choose --block data_seed",
            )
    if simultaneous and interval != "t":
        raise UsageError("--simultaneous is for --interval t", received=interval, remedy="leave one of them out")


def _check(
    found: Mapping[int, Pairs],
    others: Mapping[int, int],
    groups: RunGroups,
    names: list[str],
    fixed: dict[str, str],
    over: str,
) -> None:
    """Refuse a table in which no row can be compared (UsageError).

    Args:
        found: the pairs of each compared group, by the group's row number. others: by the same numbers, that of the
            group it is compared with. groups: the groups of the table. names: the name of each group. over: what
            differences are over.
    """
    if not found:
        raise UsageError(
            f"there is nothing to compare with {_written(fixed)}",
            expected=f"another group that differs from the baseline's in {', '.join(fixed)} alone",
            received=f"{counted(len(groups.runs), 'group')} by {', '.join(groups.keys)}",
            remedy=_other_grouping(groups, fixed) or "add --by COLUMN for what tells the others apart",
        )
    blocks = max(len(pairs.differences) for pairs in found.values())
    if not blocks:
        good = [group[group["status"] == "finished"] for group in groups.runs]
        alive = [pair for pair in others.items() if all(len(good[place]) for place in pair)]
        if not alive:  # of the first comparison, the baseline is named first
            dead = list(dict.fromkeys(place for pair in others.items() for place in pair[::-1] if good[place].empty))
            beside = f"; so did all of {counted(len(dead) - 1, 'other group')}" if dead[1:] else ""
            raise UsageError(
                f"all runs of {names[dead[0]]} failed: there is nothing to compare",
                expected="runs that finished, of the baseline and of what is set against it",
                received=counted(len(groups.runs[dead[0]]), "failed run") + beside,
                remedy="try them again with `fusionkit fit --retry-failed`, or fit with a smaller --lr",
            )
        place, other = alive[0]
        raise UsageError(
            f"no run has a partner among those of the baseline {_written(fixed)}",
            expected=f"runs that agree in data_seed and in all but {', '.join(fixed)}",
            received=_mismatch(good[place], good[other], fixed),
            remedy="fit the baseline with the same options and seeds, or group by what differs (--by)",
        )
    if blocks == 1 and over != EXAMPLES:
        unit = "seed"
        remedy = "fit more --seeds, leave --baseline out, or compare over test examples with --over examples"
        if next(iter(found.values())).by_data:
            unit, remedy = "data set", "fit over other data sets too, or leave --block out"
        raise UsageError(
            f"one {unit} shows no significance: no group has two trials in common with {_written(fixed)}",
            expected=f"two {unit}s or more; six for a permutation test of one comparison",
            received="1 block of pairs",
            remedy=remedy,
        )


def _other_grouping(groups: RunGroups, fixed: dict[str, str]) -> str | None:
    """A remedy where no group can be compared: options that group by method, fusion and what the baseline fixes, as far
    as the runs differ in these; None if this is how they are grouped already.
    """
    heads = groups.frame[~are_floors(groups.frame)]
    differ = [name for name in ("method", "fusion", *fixed) if len(heads[name].drop_duplicates()) > 1]
    wanted = ["method", "fusion", *differ] if "method" in differ else differ
    names = [name for name in dict.fromkeys(wanted) if name not in groups.average]
    rows = heads[list(dict.fromkeys([*names, *fixed]))].drop_duplicates().to_dict(orient="records")
    alike = [row for row in rows if all(value_text(row[name]) == value for name, value in fixed.items())]
    baseline = {name: value_text(row[name]) for row in alike[:1] for name in names}
    if not baseline:
        return None
    tuned = [name for name in TUNED if name not in (*names, *groups.average, *groups.chosen)]
    choose = ["--choose-by validation"] if any(varies(heads, names, name) for name in tuned) else []
    if set(names) == set(groups.by) and not choose and baseline == fixed:
        return None
    written = shlex.quote(",".join(f"{name}={value}" for name, value in baseline.items()))
    options = [*(f"--by {name}" for name in names), *choose, f"--baseline {written}"]
    return f"group by what tells the runs apart: {' '.join(options)}"


def _mismatch(ours: pd.DataFrame, theirs: pd.DataFrame, fixed: dict[str, str]) -> str:
    """The first axis in which two groups have nothing in common."""
    for name in (*AXES, *SEEDS):
        one, other = (list(dict.fromkeys(map(value_text, runs[name]))) for runs in (ours, theirs))
        if name not in fixed and name != "init_seed" and not set(one) & set(other):
            return f"{name} {', '.join(one[:5])} against {', '.join(other[:5])}"
    return "runs that never agree in all axes at once"


def _written(fixed: dict[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in fixed.items())


def _read_baseline(text: str, table: pd.DataFrame, keys: list[str], bare: str, columns: list[str]) -> dict[str, str]:
    """The columns that a baseline fixes, each with its value as :func:`value_text` writes it.

    Args:
        text: a value of the column ``bare``, a value that only one other key has, or ``COLUMN=VALUE`` with commas
            between; ``none`` where a column has no value. table: one row per group. keys: the columns it is grouped by.
        columns: all columns of the results.
    """
    labels = {name: list(dict.fromkeys(map(value_text, table[name]))) for name in keys}
    # Names of fusions hold commas and equals signs themselves: linear:gamma=no,norm=token.
    holders = [name for name in keys if text in labels[name]]
    if text in labels[bare] or len(holders) == 1:
        return {bare if text in labels[bare] else holders[0]: text}
    parts = baseline_parts(text, columns)
    if not re.match("[a-z_]+=", text):
        parts = [f"{bare}={text}"]
    fixed: dict[str, str] = {}
    for part in parts:
        name, _, value = part.partition("=")
        if name not in columns:
            raise unknown_name("column of the results", name, columns)
        if name not in keys:
            raise UsageError(
                f"the baseline fixes {name}, by which the table is not grouped",
                expected="one of " + ", ".join(keys),
                received=text,
                remedy=f"add --by {name}",
            )
        fixed[name] = _known(name, value, labels[name])
    return fixed


def _known(name: str, value: str, labels: list[str]) -> str:
    if value in labels:
        return value
    for label in labels:  # 2e-3 is 0.002
        try:
            if float(label) == float(value):
                return label
        except ValueError:
            continue
    raise unknown_name(f"{name} of these results", value, labels)
