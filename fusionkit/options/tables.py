"""The options of ``fit`` and ``encode`` by their flags: a spec's fields, and options that set fields in other ways."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fusionkit.names import FLOORS, TASKS
from fusionkit.options.entry import NONE, SWEPT, WHOLE, OptionInfo, options_of
from fusionkit.specs import AUTO, ENCODER, ORDERS, PARTS, EncodeSpec, RunSpec

_RUN = options_of(RunSpec)
# Fields of a run that no option sets by itself.
HIDDEN = {"store", "mix", "evaluate_on", "task_stores", "task_batches", "init_seed"}
# The options that a user gives instead of these fields.
INSTEAD: dict[str, tuple[OptionInfo, ...]] = {
    "draw_ids": (
        OptionInfo(
            name="draw_from",
            help="Use the examples that earlier runs drew, or a list of ids.",
            metavar="RUN|RUNS|FILE.json",
            lists=NONE,
            place=True,
        ),
    ),
    "data_seed": (
        OptionInfo(
            name="seeds",
            help="Train K times, with data and init seed 0 … K-1. [default: 1]",
            kind=int,
            ge=1,
            lists=NONE,
        ),
        OptionInfo(
            name="data_seeds",
            help="K seeds of draws and order, each with all of --init-seeds.",
            kind=int,
            ge=1,
            lists=NONE,
        ),
        OptionInfo(name="init_seeds", help="K seeds of weights and dropout.", kind=int, ge=1, lists=NONE),
    ),
    "mdl": (
        OptionInfo(
            name="mdl",
            help="Train each head also on growing blocks of train: results then show the labels' online code length.",
            kind=bool,
            default=False,
        ),
    ),
}
# What an option has otherwise than its field. All other fields are options as they are.
CHANGED: dict[str, dict[str, Any]] = {
    "task": {
        "help": f"{', '.join(TASKS)}; several times as NAME=TASK; multi: one per store. [default: by the columns]",
        "named": True,
    },
    "label": {
        "help": "Column with the labels; NAME=COLUMN with several tasks, INTENT,SLOTS for joint. [default: guessed]",
        "named": True,
    },
    "fusion": {
        "help": "A fusion, or your own as MODULE:CLASS; layer:* is each layer alone; several times. "
        "[default: last, linear, concat, attention; for mlm concat-affine in place of concat]",
        "parameter": "fusions",
        "lists": SWEPT,
    },
    "fusion_layers": {
        "help": "Stored layers to fuse: all, 0,3,6 or -4:. [default: as in the fusion's paper]",
        "pattern": None,
        "lists": SWEPT,
    },
    "head": {
        "help": "A head, or your own as MODULE:CLASS; NAME=HEAD with several tasks, or classifier+crf. "
        "[default: the task's]",
        "named": True,
    },
    "validate_on": {"kind": str, "metavar": "N|P%"},
    "order": {
        "help": f"{_RUN['order'].help} auto: window above 8 GiB in float32.",
        "choices": (AUTO, *ORDERS),
        "default": AUTO,
    },
    "control": {
        "help": "Train each head also on control labels, a fixed random label per word type or text: results then "
        "show selectivity.",
    },
    "method": {
        "help": "How the encoder is trained: frozen (not at all), a method, or your own as MODULE:CLASS; several "
        "times.",
    },
    "encoder_lr": {
        "help": "Learning rate of the weights that a method trains; grid: its own four rates. [default: the method's]",
        "kind": str,
        "metavar": "X|grid",
    },
    "from_layer": {
        "help": "Stored layer to start training from, below all that the method changes: the highest (auto), layer K, "
        "or none (from the text).",
        "kind": str,
        "default": AUTO,
        "optional": False,
        "ge": None,
        "metavar": "auto|none|K",
    },
    "freeze": {
        "help": "Part of the model that is not trained; encoder: methods like pals train only what they add.",
        "choices": (*PARTS, ENCODER),
    },
    "init_from": {"help": "Finished run to start from, or a folder of runs.", "lists": WHOLE, "place": True},
}


def by_flag(*options: OptionInfo) -> dict[str, OptionInfo]:
    """Options by the names that commands and files give them."""
    return {entry.flag: entry for entry in options}


# The options of a run, which each block of a sweep may have.
FIT = by_flag(
    *(
        given
        for name, entry in _RUN.items()
        if name not in HIDDEN
        for given in INSTEAD.get(name, (replace(entry, **CHANGED[name]) if name in CHANGED else entry,))
    ),
    OptionInfo(
        name="floor",
        help=f"Baselines without an encoder, as further runs: {', '.join(FLOORS)} (which adds majority), or none. "
        "[default: majority where an example has one label or number]",
        metavar="NAME,…",
        lists=WHOLE,
    ),
    OptionInfo(
        name="budget_per_task",
        help="For methods and fusions given without a number, like pals: the largest size with at most N weights per "
        "task.",
        kind=int,
        ge=1,
        metavar="N",
    ),
    OptionInfo(
        name="halving",
        help="Successive halving: stop the worse half of the rates and layers early, several times.",
        kind=bool,
        default=False,
        lists=NONE,
    ),
)
# The options that all runs of a sweep share.
STORES = by_flag(
    OptionInfo(
        name="store", help="Stores to train on, whole or a share (DE:5%).", parameter="stores", lists=WHOLE, place=True
    ),
    replace(
        _RUN["evaluate_on"],
        help="Store to evaluate on; the first chooses the epoch. [default: the last one named]",
        lists=WHOLE,
        place=True,
    ),
)
ENCODE = {
    flag: replace(entry, lists=NONE)
    for flag, entry in by_flag(
        *options_of(EncodeSpec).values(),
        OptionInfo(name="config", help="Configuration of a hub data set."),
        OptionInfo(name="revision", help="Revision of a hub data set."),
        OptionInfo(name="text", help="Column with the text. [default: guessed]"),
        OptionInfo(name="pair", help="Column with the second text of a pair. [default: guessed]"),
        OptionInfo(name="tokens", help="Column with lists of words. [default: guessed]"),
        OptionInfo(
            name="columns",
            help="Names of a CoNLL file's columns, like index,word,_,tag: index counts words, _ is left out. "
            "[default: guessed]",
            metavar="NAME,…",
        ),
        OptionInfo(name="device", help="auto, cpu or cuda:0.", default="auto"),
    ).items()
}
