"""The figures that a report can have, by the names that ``--figures`` writes them under."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd

from fusionkit.report.figures import ablation, break_even, confusions, curves, from_text, layers_needed, scores, weights
from fusionkit.report.report_data import ReportData

SCORE = "Score on test (on validation if there is no test split)"
SPREAD = "mean and 95 % t interval over the seeds, cut at 0 and 100 %"
RINGS = "A ring: better than every method that costs less, each by a paired test (p at most 0.05)."
BANDS = f"mean over the seeds; bands are 95 % t intervals, drawn for at most {curves.MOST_BANDS} methods"


@dataclass(frozen=True)
class Figure:
    """One figure.

    Attributes:
        title: its title. caption: a description of the chart, with units. needs: what the runs must have.
        data: makes its tidy data; None where the runs have none. chart: makes an Altair chart of study and data.
        about: makes a sentence that depends on the data. thinned_by: if there are too many rows, those of evenly spaced
            values of these columns are drawn.
    """

    title: str
    caption: str
    needs: str
    data: Callable[[ReportData], pd.DataFrame | None]
    chart: Callable[[ReportData, pd.DataFrame], Any]
    about: Callable[[pd.DataFrame], str] = lambda data: ""
    thinned_by: tuple[str, ...] = ()


def _by_cost(cost: str, title: str, what: str, needs: str) -> Figure:
    """Scores by one of the costs of :data:`fusionkit.report.figures.scores.COSTS`; ``what`` it is, in words."""
    caption = f"{SCORE} by {what}, on a logarithmic axis: {SPREAD}. The upper left is best. {RINGS}"
    return Figure(title, caption, needs, partial(scores.by_cost, cost), partial(scores.cost_chart, cost))


FIGURES: dict[str, Figure] = {
    "shots": Figure(
        "Score by labelled examples",
        f"Score by labelled examples a class, on test and on validation: {SPREAD}, two panels a task.",
        "runs of one task with two sizes of draw (--shots) or more",
        scores.by_shots,
        scores.shots_chart,
    ),
    "epochs": Figure(
        "Score by epochs given",
        f"Score by the number of epochs that a run was given (--epochs), on test and on validation: {SPREAD}, two "
        "panels a task and size of draw.",
        "runs of one task and size of draw with two numbers of epochs or more",
        scores.by_epochs,
        scores.epochs_chart,
    ),
    "parameters": _by_cost(
        "parameters",
        "Score by parameters",
        "how many parameters are trained: head, fusion and method",
        "a finished run",
    ),
    "seconds": _by_cost(
        "seconds", "Score by time", "the seconds that one head takes when it is trained alone", "a finished run"
    ),
    "seconds-from-text": Figure(
        "Score by time, from the text",
        f"{SCORE} by the seconds from the text to the scored head, on a logarithmic axis: {SPREAD}. A head over the "
        "store pays its share of the encoding: all for the only head (large), a tenth and a hundredth for one of 10 "
        "and of 100 heads. A method that trains through the encoder needs no store.",
        "runs over one store that tells how long its encoding took",
        from_text.data,
        from_text.chart,
        from_text.about,
    ),
    "bytes": _by_cost(
        "bytes",
        "Score by bytes that are kept",
        "the bytes that a task's head keeps beside the encoder and the store",
        "a finished run that tells its bytes",
    ),
    "memory": _by_cost(
        "memory",
        "Score by memory",
        "the peak bytes of tensors in a training step, those of the encoder among them where it runs",
        "a finished run that tells its memory",
    ),
    "score-by-epoch": Figure(
        "Score by epoch",
        f"Validation score after each epoch, on a task's smallest and largest draw: {BANDS}.",
        "runs with an epoch or more",
        partial(curves.data, "epoch", "validation_score"),
        partial(curves.chart, "epoch"),
        thinned_by=("epoch",),
    ),
    "score-by-seconds": Figure(
        "Score by training time",
        "Validation score by the seconds of one head trained alone, on a logarithmic axis.",
        "runs with an epoch or more",
        partial(curves.data, "seconds", "validation_score"),
        partial(curves.chart, "seconds"),
        thinned_by=("epoch",),
    ),
    "loss-by-step": Figure(
        "Loss by step",
        f"Mean training loss of each epoch by steps of the optimizer, on a logarithmic axis: {BANDS}. Losses of "
        "different heads are not on one scale.",
        "runs with an epoch or more that tell how many examples they learned from: a draw, or their store",
        partial(curves.data, "step", "loss"),
        partial(curves.chart, "step"),
        thinned_by=("epoch",),
    ),
    "loss-by-seconds": Figure(
        "Loss by training time",
        "Mean training loss of each epoch by the seconds of one head trained alone, on a logarithmic axis (figure 3 of "
        "Cao et al. 2022).",
        "runs with an epoch or more",
        partial(curves.data, "seconds", "loss"),
        partial(curves.chart, "seconds"),
        thinned_by=("epoch",),
    ),
    "loss-by-seconds-from-text": Figure(
        "Loss by time, from the text",
        "Mean training loss of each epoch by the seconds from the text, on a logarithmic axis: those of one head "
        "trained alone and, for a head over a store, those of encoding it.",
        "runs with an epoch or more; of those over a store, a store that tells how long its encoding took",
        partial(curves.data, "from_text", "loss"),
        partial(curves.chart, "from_text"),
        thinned_by=("epoch",),
    ),
    "single-layers": Figure(
        "Each layer alone",
        f"{SCORE} of a head over one layer alone: {SPREAD}. Level lines are the fusions over several layers.",
        "runs of layer:k for two layers or more",
        scores.by_layer,
        scores.layer_chart,
    ),
    "layers-needed": Figure(
        "How much of the encoder is needed",
        f"{SCORE} by a layer k: of k alone, of a fusion over 0 … k, of training the layers above k: {SPREAD}.",
        "runs of a fusion over layers 0 … k, or of --method top:m, for two k or more",
        layers_needed.data,
        layers_needed.chart,
    ),
    "layer-weights": Figure(
        "Layer weights by task",
        "The weight that each fusion gives each layer: mean over the validation rows and the seeds. A line sums to 1.",
        "runs of a fusion that weighs its layers",
        weights.by_task,
        partial(weights.heat_by, "task"),
    ),
    "layer-weights-by-seed": Figure(
        "Layer weights by seed",
        "The same, a dot a run: where the dots of a method lie apart, the seed decides where it looks. Lines are "
        "means.",
        "several runs of one task with a fusion that weighs its layers",
        weights.by_seed,
        weights.chart_by_seed,
        thinned_by=("data_seed", "init_seed"),
    ),
    "layer-weights-by-label": Figure(
        "Layer weights by label",
        "Mean weight of each layer over the rows of each gold label (of tags that mark spans: of each type), in the "
        "task's best run by validation whose fusion weighs rows differently. "
        f"At most {weights.MOST_LABELS} labels, the most frequent ones.",
        "runs of a fusion that weighs each row by itself, their stores and their weights",
        weights.by_label,
        weights.chart_by_label,
    ),
    "layer-weights-by-language": Figure(
        "Layer weights by language",
        "The weight that each fusion gives each layer, by the language that the data set's name tells.",
        "runs over data sets whose names tell two languages or more, as travel-desk-de",
        weights.by_language,
        partial(weights.heat_by, "language"),
    ),
    "ablation": Figure(
        "Without the parts of some layers",
        "Share of the validation score (or of another split's, which is named) that is lost where the parts of layers "
        "first … last are taken away, without training again (Houlsby et al. 2019, figure 6).",
        "runs that `fusionkit ablate` has scored",
        ablation.data,
        ablation.chart,
        ablation.about,
    ),
    "break-even": Figure(
        "Encoding once",
        "Minutes that a number of heads took over the store, its encoding included (measured), beside what they would "
        "have taken if the frozen encoder ran again in every epoch (counted: passes times the seconds of a pass).",
        "two runs or more over one store that tells how long its encoding took",
        break_even.data,
        break_even.chart,
        break_even.about,
        thinned_by=("heads",),
    ),
    "confusion": Figure(
        "Gold and predicted classes",
        "How many of each gold class were predicted as what; the colour is the share of the gold class. The run with "
        f"the best validation score; of more than {confusions.MOST_CLASSES} classes the rarest stand together.",
        "runs that decide between classes, their stores and their weights",
        confusions.data,
        confusions.chart,
    ),
}
