"""The JSON schema of a study's file, for editors: made from the tables that the file is checked by.

Numbers may stand in quotes, as the file's values are read as text.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from fusionkit.cluster.settings import ClusterSettings
from fusionkit.fit.sweep.file import KEYS, Key
from fusionkit.fusions import FUSIONS, fusion_class, options_of
from fusionkit.fusions.spelling import Option
from fusionkit.registry import IMPORT_PATTERN
from fusionkit.report import FIGURES
from fusionkit.specs import (
    AUTO,
    CLASS_WEIGHTS,
    DRAWS,
    JOINT_FUSIONS,
    OPTIMIZERS,
    ORDERS,
    PARTS,
    POOLS,
    SCHEDULES,
    TRAINING_DTYPES,
)
from fusionkit.study.keys import ALL_FIGURES, COMPARISON, FROM, REPORT, SOURCE, TOP, Field
from fusionkit.study.option_checks import COLUMNS, HEADS
from fusionkit.tasks import TASKS

DIALECT = "https://json-schema.org/draft/2020-12/schema"
WHOLE, NUMBER = r"^[0-9]+$", r"^[-+]?([0-9]*\.)?[0-9]+([eE][-+]?[0-9]+)?$"
NAMES: dict[str, tuple[str, ...]] = {
    "task": tuple(TASKS), "pool": POOLS, "draw": DRAWS, "optimizer": OPTIMIZERS, "schedule": SCHEDULES,
    "class-weights": CLASS_WEIGHTS, "compute-dtype": TRAINING_DTYPES, "order": (AUTO, *ORDERS),
    "joint-fusion": JOINT_FUSIONS, "init-part": PARTS, "freeze": PARTS,
}  # fmt: skip
Schema = dict[str, Any]


def study_schema() -> Schema:
    """The schema, as JSON values."""
    block = {name: _option(name, key) for name, key in KEYS.items()}
    stores = _listed({"type": "string", "description": "A source by its name, or a share of it: de:5%."})
    sweep = {
        "store": stores,
        "evaluate-on": _listed({"type": "string", "description": "A source to judge by."}),
        **block,
        "runs": {"type": "array", "minItems": 1, "items": _closed(block)},
    }
    figures = {"enum": list(FIGURES)}
    comparison = _fields(COMPARISON)
    comparison["by"] = _listed({"enum": list(COLUMNS)}) | {"description": COMPARISON["by"].help}
    comparison["across"] = {"enum": list(COLUMNS), "description": COMPARISON["across"].help}
    parts: Schema = {
        "sources": _named({"anyOf": [{"type": "string"}, {**_closed(_fields(SOURCE)), "required": ["source"]}]}),
        "fit": _closed({name: part for name, part in block.items() if name not in FROM}),
        "sweeps": _named({**_closed(sweep), "required": ["store"]}),
        "comparisons": _named(_closed(comparison)),
        "figures": {"anyOf": [{"const": ALL_FIGURES}, figures, {"type": "array", "items": figures}]},
        "report": {"anyOf": [{"type": "boolean"}, {"enum": ["yes", "no"]}, _closed(_fields(REPORT))]},
        "cluster": _closed({field.name: _setting(str(field.type)) for field in dataclasses.fields(ClusterSettings)}),
    }
    told = {name: {**part, "description": TOP[name].help} for name, part in parts.items()}
    return {
        "$schema": DIALECT,
        "title": "A study of fusionkit",
        **_closed({**_fields({name: field for name, field in TOP.items() if name not in parts}), **told}),
        "required": ["sources"],
    }


def fusion_pattern() -> str:
    """A regular expression of all fusions with their options; their names have no sign that would need a backslash.

    An import path may have any options: what is behind it is imported by the study, not by an editor.
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
    return "-?[0-9]+" if option.choices is None else f"({'|'.join(option.choices)})"


def _option(name: str, key: Key) -> Schema:
    """One option of fit, or a list of values to sweep over."""
    single: Schema
    if name == "fusion":
        plain = [kind for kind in FUSIONS if re.fullmatch(fusion_pattern(), kind)]
        single = {"anyOf": [{"enum": plain}, {"type": "string", "pattern": fusion_pattern()}]}
    elif name == "head":
        part = f"([a-z-]+|{IMPORT_PATTERN})"
        own = f"^(({part}[+])?{IMPORT_PATTERN}|{IMPORT_PATTERN}[+]{part})$"
        single = {"anyOf": [{"enum": list(HEADS)}, {"type": "string", "pattern": own}]}
    elif name in NAMES:
        single = {"enum": list(NAMES[name])}
    elif name == "validate-on":
        single = {"anyOf": [_number(int), {"type": "string", "pattern": "^[0-9.]+%$"}]}
    else:
        single = _number(key.kind)
    return single if key.list == "none" else _listed(single)


def _fields(block: Mapping[str, Field]) -> Schema:
    found = {}
    for name, field in block.items():
        single = {"enum": list(field.choices)} if field.choices is not None else _number(field.kind)
        found[name] = {**(_listed(single) if field.several else single), "description": field.help}
    return found


def _number(kind: object) -> Schema:
    if kind is int:
        return {"anyOf": [{"type": "integer"}, {"type": "string", "pattern": WHOLE}]}
    if kind is float:
        return {"anyOf": [{"type": "number"}, {"type": "string", "pattern": NUMBER}]}
    return {"type": ["string", "number"]}


def _setting(kind: str) -> Schema:
    """A setting of a cluster by its field's type."""
    if kind.startswith("bool"):
        return {"type": "boolean"}
    if kind.startswith(("int", "float")):
        return _number(int if kind.startswith("int") else float)
    return _listed({"type": "string"}) if kind.startswith("tuple") else {"type": "string"}


def _listed(single: Schema) -> Schema:
    return {"anyOf": [single, {"type": "array", "minItems": 1, "items": single}]}


def _named(value: Schema) -> Schema:
    names = {"pattern": "^[A-Za-z0-9][A-Za-z0-9_.-]*$"}
    return {"type": "object", "propertyNames": names, "additionalProperties": value}


def _closed(properties: Schema) -> Schema:
    return {"type": "object", "additionalProperties": False, "properties": properties}
