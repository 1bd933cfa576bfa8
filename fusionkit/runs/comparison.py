"""Groups of runs against a baseline: paired differences, their interval, p-values, wins, ties and losses.

A group is compared with the one that has the baseline's values in the columns it fixes and the group's own in the
others: with ``--by label --by fusion --baseline last``, each fusion of a label with ``last`` of that label.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from fusionkit.errors import UsageError, unknown_name
from fusionkit.plural import counted
from fusionkit.runs.baseline import label_of, read_baseline
from fusionkit.runs.pairing import Pairs, pair_runs
from fusionkit.runs.summary import AXES, SEEDS, group_columns, summarise
from fusionkit.statistics import CORRECTIONS, INTERVALS, LEVEL, TESTS, corrected

COMPARED = (
    "baseline", "is_baseline", "difference", "difference_low", "difference_high", "p", "p_corrected", "smallest_p",
    "significant", "wins", "ties", "losses", "pairs", "blocks", "unpaired", "also_differs",
)  # fmt: skip


def compare(
    frame: pd.DataFrame,
    baseline: str,
    by: list[str] | None = None,
    *,
    interval: str = "t",
    test: str = "permutation",
    correction: str = "holm",
) -> pd.DataFrame:
    """One row a group, as :func:`summarise` gives it, with what sets it apart from the baseline.

    Args:
        frame: one row a run. by: columns to group by, as for :func:`summarise`.
        baseline: a value of the first of ``by`` (of ``fusion`` without it) or of one other alone, or
            ``fusion=last,lr=0.002``.
        interval: ``t`` or ``bootstrap``. test: ``permutation`` or ``bootstrap``.
        correction: ``holm``, ``bonferroni``, ``fdr`` or ``none``, over all comparisons of the table.

    Returns:
        the summary's columns, then ``baseline`` (what the row is compared with) and ``is_baseline``; mean paired
        ``difference`` with ``difference_low`` and ``difference_high`` of its 95 % interval; ``p``, ``p_corrected``,
        ``smallest_p`` (what so many blocks can give at best) and ``significant`` (``p_corrected`` at most 0.05);
        ``wins``, ``ties``, ``losses`` of ``pairs`` in ``blocks``; ``unpaired`` runs; ``also_differs``, the axes that
        tell the two apart besides the baseline's. A group with less than two blocks has no interval and no p-value.

    Raises:
        UsageError: an unknown name, a baseline without runs or pairs, or a single block throughout.
    """
    if test not in TESTS:
        raise unknown_name("test", test, TESTS)
    if correction not in CORRECTIONS:
        raise unknown_name("correction", correction, CORRECTIONS)
    keys = group_columns(frame, by)
    table = summarise(frame, keys, interval)
    fixed = read_baseline(baseline, table, keys, keys[0] if by else "fusion", list(frame.columns))
    groups = [group for _, group in frame.groupby(keys, sort=False, dropna=False)]
    labels = [tuple(map(label_of, values)) for values in table[keys].itertuples(index=False, name=None)]
    places = {label: place for place, label in enumerate(labels)}
    against = [tuple(fixed.get(key, value) for key, value in zip(keys, label, strict=True)) for label in labels]
    if not set(against) & set(labels):
        raise UsageError(f"no run has {_written(fixed)} together", received=baseline, remedy="choose another baseline")
    found: list[Pairs | None] = []
    for group, label, other in zip(groups, labels, against, strict=True):
        there = other in places and other != label
        found.append(pair_runs(group, groups[places[other]], list(fixed)) if there else None)
    names = [_written(dict(zip(keys, label, strict=True))) for label in labels]
    _check(found, groups, names, [places.get(other) for other in against], fixed)
    rows = [
        {
            "baseline": _written(fixed),
            "is_baseline": label == other,
            "unpaired": 0 if label == other else runs,  # where there is no baseline, nobody has a partner
            **({} if pairs is None else _compared(pairs, interval, test)),
        }
        for label, other, runs, pairs in zip(labels, against, table["runs"], found, strict=True)
    ]
    extra = pd.DataFrame(rows, columns=list(COMPARED))
    extra["p_corrected"] = corrected(extra["p"].to_numpy(dtype=np.float64), correction)
    extra["significant"] = extra["p_corrected"] <= 1 - LEVEL
    # Counts that some rows lack would become decimals.
    extra = extra.astype(dict.fromkeys(("wins", "ties", "losses", "pairs", "blocks", "unpaired"), "Int64"))
    return pd.concat([table, extra], axis=1)


def _compared(pairs: Pairs, interval: str, test: str) -> dict[str, object]:
    differences, (won, tied, lost) = pairs.differences, pairs.outcomes
    n = len(differences)
    low, high = INTERVALS[interval](differences)
    return {
        "difference": float(np.mean(differences)) if n else np.nan,
        "difference_low": low,
        "difference_high": high,
        "p": TESTS[test].p_value(differences) if n > 1 else np.nan,
        "smallest_p": TESTS[test].smallest(n) if n > 1 else np.nan,
        "wins": won,
        "ties": tied,
        "losses": lost,
        "pairs": len(pairs.ours),
        "blocks": n,
        "unpaired": pairs.unpaired,
        "also_differs": ", ".join(pairs.differs) or None,
    }


def _check(
    found: list[Pairs | None],
    groups: list[pd.DataFrame],
    names: list[str],
    others: list[int | None],
    fixed: dict[str, str],
) -> None:
    """Refuse what no row of the table could be compared by.

    Args:
        groups: of runs. names: theirs. others: the place of the group that each is compared with.
    """
    compared = [place for place, pairs in enumerate(found) if pairs is not None]
    if not compared:
        raise UsageError(
            f"there is nothing to compare with {_written(fixed)}",
            expected="another group of runs beside the baseline's",
            received=f"{len(groups)} group{'s' if len(groups) > 1 else ''}",
            remedy="add --by COLUMN for what tells the others apart",
        )
    blocks = max(len(pairs.differences) for pairs in found if pairs is not None)
    if not blocks:
        pairs = [(place, other) for place in compared if (other := others[place]) is not None]
        good = [group[group["status"] == "finished"] for group in groups]
        alive = [pair for pair in pairs if all(len(good[place]) for place in pair)]
        if not alive:  # of the first comparison the baseline is told of first
            dead = [place for pair in pairs for place in reversed(pair) if not len(good[place])]
            raise _all_failed(names[dead[0]], len(groups[dead[0]]), len(set(dead)) - 1)
        place, other = alive[0]
        raise UsageError(
            f"no run has a partner among those of the baseline {_written(fixed)}",
            expected=f"runs that agree in data_seed and in all but {', '.join(fixed)}",
            received=_mismatch(good[place], good[other], fixed),
            remedy="fit the baseline with the same options and seeds, or group by what differs (--by)",
        )
    if blocks == 1:
        raise UsageError(
            f"one seed shows no significance: no group has two trials in common with {_written(fixed)}",
            expected="two seeds or more; six for a permutation test of one comparison",
            received="1 block of pairs",
            remedy="fit more --seeds, or leave --baseline out",
        )


def _all_failed(name: str, runs: int, others: int) -> UsageError:
    return UsageError(
        f"all runs of {name} failed: there is nothing to compare",
        expected="runs that finished, of the baseline and of what is set against it",
        received=counted(runs, "failed run") + (f"; so did all of {counted(others, 'other group')}" if others else ""),
        remedy="try them again with `fusionkit fit --retry-failed`, or fit with a smaller --lr",
    )


def _mismatch(ours: pd.DataFrame, theirs: pd.DataFrame, fixed: dict[str, str]) -> str:
    """The first axis in which two groups have nothing in common."""
    for name in (*AXES, *SEEDS):
        one, other = (list(dict.fromkeys(map(label_of, runs[name]))) for runs in (ours, theirs))
        if name not in fixed and name != "init_seed" and not set(one) & set(other):
            return f"{name} {', '.join(one[:5])} against {', '.join(other[:5])}"
    return "runs that never agree in all axes at once"


def _written(fixed: dict[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in fixed.items())
