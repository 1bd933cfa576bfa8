"""Runs keep their names on disk: the digests of ten runs, as every release has given them."""

from __future__ import annotations

from typing import Any

import pytest

from fusionkit.specs import RunSpec

STORE, OTHER = "0123456789abcdef", "89abcdef01234567"
PLAIN: dict[str, Any] = {
    "store": STORE,
    "task": "classification",
    "label": "intent",
    "fusion": "linear",
    "head": "classifier",
}

# What sets a run apart from a plain one, and its digest.
DIGESTS: dict[str, tuple[dict[str, Any], str]] = {
    "defaults": ({}, "ed95992c58e19f2a"),
    "options of the second release": (
        {
            "fusion_layers": "0,3,6",
            "optimizer": "adam",
            "warmup": 0.1,
            "clip_norm": 1.0,
            "label_smoothing": 0.1,
            "class_weights": "balanced",
            "patience": 3,
            "validate_on": 800,
            "validate_every": 5,
            "order": "window",
            "compute_dtype": "bfloat16",
        },
        "f53c3ed71b6b120a",
    ),
    "every option of the first release": (
        {
            "pool": "mean",
            "shots": 16,
            "data_seed": 3,
            "init_seed": 4,
            "lr": 5e-4,
            "weight_decay": 0.01,
            "dropout": 0.1,
            "epochs": 50,
            "batch_size": 16,
            "schedule": "constant",
        },
        "61641459841c0016",
    ),
    "joint": (
        {"task": "joint", "label": "intent,slots", "head": "classifier+crf", "joint_fusion": "each", "pool": "cls"},
        "a3a84705231b99aa",
    ),
    "mix": ({"mix": f"{STORE},{OTHER}:5%", "evaluate_on": f"{OTHER},{STORE}"}, "2fbcf36b8b3b1672"),
    "mlm": ({"task": "mlm", "label": "", "fusion": "concat-affine", "head": "lm-head-trained"}, "1604eae6478f6227"),
    "pairs": (
        {"task": "pair-classification", "label": "label", "fusion": "dwatt:scale=yes", "head": "esim", "dropout": 0.2},
        "9c872f1898fbdf07",
    ),
    "drawn": ({"shots": 8, "draw": "nested", "data_seed": 2, "init_seed": 2}, "e8c2c6dcbd62c71d"),
    "draw given back": ({"shots": 8, "draw": "ids", "draw_ids": OTHER}, "18511e07857b36df"),
    "begun and frozen": (
        {"init_from": STORE, "init_part": "fusion", "freeze": "fusion", "schedule": "cosine"},
        "8491ba415c79772a",
    ),
}


@pytest.mark.parametrize("name", DIGESTS)
def test_a_run_keeps_its_digest(name: str) -> None:
    changes, digest = DIGESTS[name]
    assert RunSpec(**{**PLAIN, **changes}).digest == digest


def test_no_two_of_them_are_one_run() -> None:
    assert len({digest for _, digest in DIGESTS.values()}) == len(DIGESTS) == 10
