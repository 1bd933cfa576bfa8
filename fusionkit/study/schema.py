"""The JSON schema of a study's file, for editors, made from the same entries that check the file.

Numbers may be quoted, because the file's values are read as text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fusionkit.cluster.settings import SETTINGS
from fusionkit.fit.sweep.multi import TASK
from fusionkit.fusions import FUSIONS, fusion_class, options_of
from fusionkit.heads import HEADS, LM_HEADS
from fusionkit.names import EVERY_LAYER, FIGURES
from fusionkit.options.entry import NONE, OptionInfo
from fusionkit.options.spelling import Option
from fusionkit.options.tables import FIT, STORES
from fusionkit.registry import IMPORT_PATTERN
from fusionkit.specs import MULTI
from fusionkit.study.keys import ALL_FIGURES, COLUMNS, COMPARISON, FROM, REPORT, SOURCE, TOP
from fusionkit.tasks import SHORT, TASKS

DIALECT = "https://json-schema.org/draft/2020-12/schema"
TYPED = {int: "-?[0-9]+", float: "[-+]?([0-9]*[.])?[0-9]+([eE][-+]?[0-9]+)?", str: "[^,]+"}  # a fusion option's values
WHOLE, NUMBER = r"^[0-9]+$", r"^[-+]?([0-9]*\.)?[0-9]+([eE][-+]?[0-9]+)?$"
BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
Schema = dict[str, Any]


def study_schema() -> Schema:
    """The schema as JSON values."""
    block = _keys(FIT)
    stores = {name: {**_listed({"type": "string"}), "description": entry.help} for name, entry in STORES.items()}
    task = {**_closed(_keys(TASK)), "required": ["name", "store"]}
    sweep = {
        **stores,
        **block,
        "tasks": {"type": "array", "minItems": 2, "items": task},
        "runs": {"type": "array", "minItems": 1, "items": _closed(block)},
    }
    figures = {"enum": list(FIGURES)}
    comparison = _keys(COMPARISON)
    comparison["by"] = _listed({"enum": list(COLUMNS)}) | {"description": COMPARISON["by"].help}
    comparison["across"] = {"enum": list(COLUMNS), "description": COMPARISON["across"].help}
    parts: Schema = {
        "sources": _named({"anyOf": [{"type": "string"}, {**_closed(_keys(SOURCE)), "required": ["source"]}]}),
        "fit": _closed({name: part for name, part in block.items() if name not in FROM}),
        "sweeps": _named({**_closed(sweep), "oneOf": [{"required": ["store"]}, {"required": ["tasks"]}]}),
        "ablate": _listed({"type": "string"}),
        "comparisons": _named(_closed(comparison)),
        "figures": {"anyOf": [{"const": ALL_FIGURES}, figures, {"type": "array", "items": figures}]},
        "report": {"anyOf": [{"type": "boolean"}, {"enum": ["yes", "no"]}, _closed(_keys(REPORT))]},
        "cluster": _closed(_keys(SETTINGS)),
    }
    told = {name: {**part, "description": TOP[name].help} for name, part in parts.items()}
    return {
        "$schema": DIALECT,
        "title": "A study of fusionkit",
        **_closed({**_keys({name: entry for name, entry in TOP.items() if name not in parts}), **told}),
        "required": ["sources"],
    }


def fusion_pattern() -> str:
    """A regular expression of all fusions with their options; no character of their names needs a backslash.

    An import path may have any options: the study imports its module; an editor cannot.
    """
    ours = "|".join(_spelled(name, fusion_class(name)) for name in FUSIONS)
    return f"^({ours}|(?!({'|'.join(FUSIONS)}):){IMPORT_PATTERN}([:,].*)?)$"


def _spelled(name: str, fusion: type[Any]) -> str:
    options = options_of(fusion)
    required = [_values(option) for option in options.values() if option.required]
    optional = "|".join(f"{option.name}={_values(option)}" for option in options.values() if not option.required)
    if required:
        behind = f"(,({optional}))*" if optional else ""
        return f"{name}:{required[0]}{behind}"
    return name + (f"(:({optional})(,({optional}))*)?" if optional else "")


def _values(option: Option) -> str:
    return TYPED[option.type] if option.choices is None else f"({'|'.join(option.choices)})"


def _keys(block: Mapping[str, OptionInfo]) -> Schema:
    """The schemas of a block's keys, by flag: one value of an option, or a list of values."""
    found = {}
    for flag, entry in block.items():
        single = _single(flag, entry)
        found[flag] = {**(single if entry.lists == NONE else _listed(single)), "description": entry.help}
    return found


def _single(flag: str, entry: OptionInfo) -> Schema:
    if flag == "fusion":
        plain = [kind for kind in FUSIONS if re.fullmatch(fusion_pattern(), kind)]
        return {"anyOf": [{"enum": [*plain, EVERY_LAYER]}, {"type": "string", "pattern": fusion_pattern()}]}
    if flag == "head":
        one = f"([a-z-]+|{IMPORT_PATTERN})"
        each = {"type": "string", "pattern": f"^{one}([+]{one})+$"}
        own = {"type": "string", "pattern": f"^{IMPORT_PATTERN}$"}
        return _of_tasks({"anyOf": [{"enum": [*HEADS, *LM_HEADS]}, own]}, one, each)
    if flag == "task":
        multi = {"type": "string", "pattern": f"^{MULTI}(,[^=,]+=[a-z-]+)*$"}
        return _of_tasks({"enum": list(TASKS)}, "[a-z-]+", {"enum": list(SHORT)}, multi)
    if flag == "label":
        return _of_tasks({"type": "string"}, "[^=,]+")
    if flag == "validate-on":
        return {"anyOf": [_number(int), {"type": "string", "pattern": "^[0-9.]+%$"}]}
    if entry.kind is bool:
        return {"anyOf": [{"type": "boolean"}, {"enum": ["yes", "no"]}]}
    if entry.choices:
        return {"enum": list(entry.choices)}
    return _number(entry.kind, **{BOUNDS[name]: bound for name, bound in entry.bounds})


def _of_tasks(single: Schema, pattern: str, *more: Schema) -> Schema:
    """The schema of an option for one task or several: a value, a block of values by task, or a text,
    topic=classification,slots=tagging.

    Args:
        pattern: matches a single value in that text. more: schemas that are allowed at the top, but not as a block's
            value.
    """
    named = f"[^=,]+={pattern}"
    text = {"type": "string", "pattern": f"^{named}(,{named})*$"}
    return {"anyOf": [single, *more, text, {"type": "object", "additionalProperties": single}]}


def _number(kind: object, **bounds: float) -> Schema:
    if kind is int:
        return {"anyOf": [{"type": "integer", **bounds}, {"type": "string", "pattern": WHOLE}]}
    if kind is float:
        return {"anyOf": [{"type": "number", **bounds}, {"type": "string", "pattern": NUMBER}]}
    return {"type": ["string", "number"]}


def _listed(single: Schema) -> Schema:
    return {"anyOf": [single, {"type": "array", "minItems": 1, "items": single}]}


def _named(value: Schema) -> Schema:
    names = {"pattern": "^[A-Za-z0-9][A-Za-z0-9_.-]*$"}
    return {"type": "object", "propertyNames": names, "additionalProperties": value}


def _closed(properties: Schema) -> Schema:
    return {"type": "object", "additionalProperties": False, "properties": properties}
