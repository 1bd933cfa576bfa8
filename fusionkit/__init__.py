"""fusionkit: encode once with a frozen transformer, then train many late-fusion heads over every layer."""

from __future__ import annotations

import os
from importlib.metadata import version
from typing import TYPE_CHECKING

from fusionkit.errors import FusionkitError
from fusionkit.lazy import lazily
from fusionkit.machine.reproducible import ask_for_the_same_bits

if TYPE_CHECKING:
    from fusionkit.estimator import FusionClassifier, FusionRegressor, FusionTagger
    from fusionkit.evaluation.evaluate import evaluate
    from fusionkit.exported import FusedHead
    from fusionkit.predict import Predictor, load
    from fusionkit.ragged import Ragged
    from fusionkit.runs.frames import curves, layer_weights, results
    from fusionkit.store import Store, open_store

ask_for_the_same_bits(os.environ)  # before torch computes anything

__version__ = version("fusionkit")
__all__ = [
    "FusedHead",
    "FusionClassifier",
    "FusionRegressor",
    "FusionTagger",
    "FusionkitError",
    "Predictor",
    "Ragged",
    "Store",
    "__version__",
    "curves",
    "evaluate",
    "layer_weights",
    "load",
    "open_store",
    "results",
]

# They need torch, and `fusionkit --help` must not wait for it.
__getattr__ = lazily(
    __name__,
    {
        "fusionkit.estimator": ("FusionClassifier", "FusionRegressor", "FusionTagger"),
        "fusionkit.evaluation.evaluate": ("evaluate",),
        "fusionkit.exported": ("FusedHead",),
        "fusionkit.predict": ("Predictor", "load"),
        "fusionkit.ragged": ("Ragged",),
        "fusionkit.runs.frames": ("curves", "layer_weights", "results"),
        "fusionkit.store": ("Store", "open_store"),
    },
)
