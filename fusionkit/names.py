"""The names that stand in the tables of fusions, heads, tasks, statistics and logs.

The tables themselves load torch or SciPy, which takes seconds; help and shell completion need the names alone.
``tests/test_names.py`` holds the two together.
"""

from __future__ import annotations

# Each with all that may be written behind it, as ``fusionkit.fusions.usage`` spells it.
FUSIONS = {
    "last": "last",
    "layer": "layer:k",
    "linear": "linear[:gamma=yes|no,norm=none|token,embeddings=yes|no]",
    "concat": "concat",
    "concat-affine": "concat-affine",
    "attention": "attention[:scale=yes|no]",
    "dwatt": "dwatt[:scale=yes|no]",
    "extra-layers": "extra-layers:n",
    "element-wise": "element-wise",
    "mlp-weights": "mlp-weights",
    "depth-lstm": "depth-lstm",
}
HEADS = (
    "classifier", "tagger", "linear-tagger", "crf", "bilstm-crf", "regressor", "bcn", "esim", "esim-regressor",
    "sigmoid-classifier", "lm-head", "lm-head-trained",
)  # fmt: skip
TASKS = ("classification", "pair-classification", "tagging", "regression", "multi-label", "mlm", "joint")
INTERVALS = ("t", "bootstrap")
TESTS = ("permutation", "bootstrap")
CORRECTIONS = ("holm", "bonferroni", "fdr", "none")
LOGS = ("tensorboard", "mlflow", "wandb")
