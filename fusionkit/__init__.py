"""fusionkit: encode once with a frozen transformer, then train many late-fusion heads over every layer."""

from __future__ import annotations

import importlib
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from fusionkit.errors import FusionkitError

if TYPE_CHECKING:
    from fusionkit.estimator import FusionClassifier, FusionRegressor, FusionTagger
    from fusionkit.exported import FusedHead
    from fusionkit.predict import Predictor, load
    from fusionkit.ragged import Ragged
    from fusionkit.runs.frames import curves, layer_weights, results
    from fusionkit.store import Store, open_store

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
    "layer_weights",
    "load",
    "open_store",
    "results",
]

# Imported when they are asked for: they need torch, and `fusionkit --help` must not wait for it.
LAZY = {
    "FusedHead": "fusionkit.exported",
    "FusionClassifier": "fusionkit.estimator",
    "FusionRegressor": "fusionkit.estimator",
    "FusionTagger": "fusionkit.estimator",
    "Predictor": "fusionkit.predict",
    "Ragged": "fusionkit.ragged",
    "Store": "fusionkit.store",
    "curves": "fusionkit.runs.frames",
    "layer_weights": "fusionkit.runs.frames",
    "load": "fusionkit.predict",
    "open_store": "fusionkit.store",
    "results": "fusionkit.runs.frames",
}


def __getattr__(name: str) -> Any:
    if name not in LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(LAZY[name]), name)
