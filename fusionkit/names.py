"""The names that stand in the tables of tasks, statistics, figures and logs.

The tables themselves load torch or SciPy, which takes seconds; help and shell completion need the names alone.
``tests/test_names.py`` holds the two together.
"""

from __future__ import annotations

TASKS = ("classification", "pair-classification", "tagging", "regression", "multi-label", "mlm", "joint")
INTERVALS = ("t", "bootstrap")
TESTS = ("permutation", "bootstrap", "t")
EVERY_LAYER = "layer:*"  # of a sweep: each stored layer alone
OVER = ("seeds", "examples", "both")  # what intervals and p-values speak of: others of these
BLOCKS = ("data_seed", "data")  # what is drawn anew as a whole where groups are compared
CHOOSERS = ("validation",)
# What a run costs, each a column of results: seconds of training alone, counts, bytes.
COSTS = (
    "seconds_alone", "trained_parameters", "kept_bytes", "peak_memory_alone", "training_flops", "prediction_flops",
)  # fmt: skip
CORRECTIONS = ("holm", "bonferroni", "fdr", "none")
FLOORS = ("majority", "tfidf")  # what a head must beat, trained without an encoder
SHOWN_SPLITS = ("test", "validation")  # whose score a table of results shows, the default first
FIGURES = (
    "shots", "epochs", "parameters", "seconds", "cost", "score-by-epoch", "score-by-seconds",
    "loss-by-step", "loss-by-seconds", "single-layers", "layers-needed", "layer-weights", "layer-weights-by-seed",
    "layer-weights-by-label", "layer-weights-by-language", "ablation", "break-even", "confusion",
)  # fmt: skip
LOGS = ("tensorboard", "mlflow", "wandb")
