"""The names that options take: of tasks, statistics, figures, logs, and of choices that several packages share. Also
the names of columns and of their roles.

The tables of tasks, statistics, figures and logs load torch or SciPy, which takes seconds; help and shell completion
need only the names. ``tests/test_names.py`` checks that these are the names of those tables.
"""

from __future__ import annotations

from collections.abc import Iterable

TASKS = ("classification", "pair-classification", "tagging", "regression", "multi-label", "mlm", "joint")
INTERVALS = ("t", "bootstrap")
TESTS = ("permutation", "bootstrap", "t")
EVERY_LAYER = "layer:*"  # in a sweep: each stored layer alone
MEAN = "mean"  # in results: stands for the task, of the mean over tasks
OVER = ("seeds", "examples", "both")  # intervals and p-values generalise to other seeds, other test examples, or both
BLOCKS = ("data_seed", "data")  # the unit that is resampled as a whole when groups are compared
CHOOSERS = ("validation",)
# The scores of tasks, and those of several tasks together: their mean, and the share of examples with all of it right.
METRICS = (
    "accuracy", "micro_f1", "macro_f1", "matthews", "positive_f1", "f1", "precision", "recall", "word_accuracy",
    "pearson", "spearman", "perplexity", "cross_entropy", "mean", "frame",
)  # fmt: skip
# The costs of a run, each a column of results: seconds of training alone, counts, bytes.
COSTS = (
    "seconds_alone", "trained_parameters", "kept_bytes", "peak_memory_alone", "training_flops", "prediction_flops",
)  # fmt: skip
CORRECTIONS = ("holm", "bonferroni", "fdr", "none")
FLOORS = ("majority", "tfidf")  # baselines without an encoder, which a head must beat
SHOWN_SPLITS = ("test", "validation")  # the split whose score a table of results shows; the default is first
FIGURES = (
    "shots", "epochs", "parameters", "seconds", "seconds-from-text", "bytes", "memory", "score-by-epoch",
    "score-by-seconds", "loss-by-step", "loss-by-seconds", "loss-by-seconds-from-text", "single-layers",
    "layers-needed", "layer-weights", "layer-weights-by-seed", "layer-weights-by-label", "layer-weights-by-language",
    "ablation", "break-even", "confusion",
)  # fmt: skip
LOGS = ("tensorboard", "mlflow", "wandb")
ROLES = ("text", "pair", "tokens")  # of the columns that an encoder reads
IDS = ("id", "idx", "guid")  # columns of ids, as data sets call them


def id_column(columns: Iterable[str]) -> str | None:
    """The column that holds the ids of the examples, in capitals or not, if there is one."""
    found = {name.lower(): name for name in columns if name.lower() in IDS}
    return next((found[name] for name in IDS if name in found), None)
