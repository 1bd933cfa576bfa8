"""Evaluations as tables on a terminal; scores in percent."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from rich.console import Console

from fusionkit.cli.console import table
from fusionkit.evaluation.answers import HeadAnswers, RunEvaluation
from fusionkit.evaluation.counts import ClassCounts, class_counts, confusions, most_frequent
from fusionkit.evaluation.of_tasks import key_of
from fusionkit.evaluation.span_errors import KINDS, count_kinds
from fusionkit.exported.head_names import head_names
from fusionkit.metrics import metric_name, times_of
from fusionkit.plural import counted
from fusionkit.runs.tables.format_cells import NOTHING
from fusionkit.statistics.kept_answers import SPANS

MOST_CLASSES = 40  # columns of a confusion table, however wide the terminal is
LONGEST = 28  # characters of a class in it
MOST_PAIRS = 10  # of the most frequent confusions that are listed
LEFT = "left"
RIGHT = "right"


def print_scores(console: Console, found: Sequence[RunEvaluation]) -> None:
    """One line per head, and one per run of several tasks; the columns are the scores that any of them has."""
    first = found[0]
    heads = [head for each in found for head in each.heads.values()]
    data = {id(head.data): head.data for head in heads}.values()
    told = [f"{each.name}, {each.split}: {counted(len(each.frame), 'example')}" for each in data]
    console.print(f"{'; '.join(told)}; scores in percent")
    names = head_names([head.run for head in heads])
    named = dict(zip(map(id, heads), names, strict=True))
    rows = [(name, len(head.gold), head.scores) for name, head in zip(names, heads, strict=True)]
    rows.sort(key=itemgetter(0))
    if len(found) == 1:
        spec, own = first.run.spec, " + ".join(head.run.spec.head for head in heads)
        method = "" if spec.is_frozen else f"{spec.method}, "
        console.print(f"{method}{spec.fusion} fusion, {own} head; trained on {first.run.data}")
    alone = len(rows)
    for each in (each for each in found if len(each.heads) > 1):
        one, *others = each.heads.values()
        labels = "+".join(key_of(head.run) for head in (one, *others))
        whole = {name: value for name, value in each.scores.items() if name in ("mean", "frame")}
        count = sum(len(head.gold) for head in each.heads.values()) if each.run.apart else len(one.gold)
        rows.append((labels + named[id(one)].removeprefix(key_of(one.run)), count, whole))
    rows[alone:] = sorted(rows[alone:], key=itemgetter(0))
    metrics = list(dict.fromkeys(metric for *_, scores in rows for metric in scores))
    header = [("head", LEFT), ("examples", RIGHT), *((metric_name(metric), RIGHT) for metric in metrics)]
    body = [[name, f"{count:,}", *(_percent(scores, metric) for metric in metrics)] for name, count, scores in rows]
    console.print(table(None, header, body))


def _percent(scores: dict[str, float], metric: str) -> str:
    return f"{times_of(metric) * scores[metric]:.1f}" if metric in scores else NOTHING


def print_details(console: Console, found: RunEvaluation) -> None:
    """For each head the counts of its classes, the confusions, and for spans the kinds of mistakes."""
    for head in found.heads.values():
        classes = class_counts(head.kind, head.gold, head.predicted, head.run.labels)
        if not classes:
            continue
        what = "entity type" if head.kind == SPANS else "class"
        console.print()
        console.print(
            table(None, [(f"{head.title}: {what}", LEFT), *((name, RIGHT) for name in HEADER)], map(_row, classes))
        )
        if any(not each.known for each in classes):
            console.print("* train has none: cannot be predicted")
        if head.kind == SPANS:
            kinds = count_kinds(zip(head.gold, head.predicted, strict=True))
            rows = [
                [each.name, *(f"{kinds[each.name][kind]:,}" for kind in KINDS)]
                for each in classes
                if each.name in kinds
            ]
            console.print()
            console.print(table(None, [("entities", LEFT), *((kind, RIGHT) for kind in KINDS)], rows))
        _print_confusion(console, head)


HEADER = ("gold", "predicted", "right", "precision", "recall", "F1")


def _row(each: ClassCounts) -> list[str]:
    shares = (f"{100 * share:.1f}" for share in (each.precision, each.recall, each.f1))
    return [
        each.name + ("" if each.known else " *"),
        f"{each.told:,}",
        f"{each.predicted:,}",
        f"{each.right:,}",
        *shares,
    ]


def _print_confusion(console: Console, head: HeadAnswers) -> None:
    """Gold classes by predicted classes, as many as fit the terminal; then the most frequent confusions."""
    pairs = confusions(head.kind, head.gold, head.predicted)
    if not pairs:
        return
    cell = max(3, len(f"{max(pairs.values()):,}")) + 2
    most = min(MOST_CLASSES, max(3, (console.width - LONGEST - 6) // cell))
    order, counts = most_frequent(pairs, most)
    numbers = [str(number) for number in range(1, len(order) + 1)]
    rows = [
        [f"{number} {_short(gold)}", *(f"{counts[gold, said]:,}" if counts[gold, said] else "·" for said in order)]
        for number, gold in zip(numbers, order, strict=True)
    ]
    console.print()
    console.print(
        table(None, [(f"{head.title}: gold ↓ predicted →", LEFT), *((number, RIGHT) for number in numbers)], rows)
    )
    wrong = sorted(((n, a, b) for (a, b), n in pairs.items() if a != b), key=lambda one: (-one[0], *one[1:]))
    if wrong:
        console.print()
        lines = [[f"{count:,}", gold, said] for count, gold, said in wrong[:MOST_PAIRS]]
        console.print(table(None, [("times", RIGHT), ("gold", LEFT), ("predicted", LEFT)], lines))


def _short(name: str) -> str:
    return name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"
