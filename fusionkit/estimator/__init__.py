"""Fusions and heads as scikit-learn estimators: the training of ``fusionkit fit`` with scikit-learn's ``fit``,
``predict`` and ``score``.

``X`` is a :class:`~fusionkit.Ragged`, a split of a store (``store["train"]``), an array ``[examples, layers, hidden]``
with one row per example, or a plain table ``[examples, features]``, which counts as one layer. Layers are counted
within ``X``: the first is layer 0. With a ``method`` that trains the encoder, :class:`FusionClassifier` takes a list of
texts. With the same options, rows and labels, the weights are those of ``fusionkit fit``.
"""

from fusionkit.estimator.per_example import FusionClassifier, FusionRegressor
from fusionkit.estimator.tagger import FusionTagger

__all__ = ["FusionClassifier", "FusionRegressor", "FusionTagger"]
