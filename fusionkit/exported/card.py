"""The model card: a head's description, its scores, its training, its use and its limits.

Names of labels, columns and data sets come from a data set's author: in Markdown every special character is escaped, in
YAML the dumper quotes them, and in both line breaks become spaces.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from fusionkit.fusions import fusion_kind
from fusionkit.heads import each_head
from fusionkit.metrics import split_score
from fusionkit.runs.record import others_of
from fusionkit.specs import FROZEN
from fusionkit.store.manifest import input_kind
from fusionkit.tasks import tasks_of

TASK_TYPES = {
    "classification": "text-classification", "pair-classification": "text-classification",
    "regression": "text-classification", "tagging": "token-classification", "multi-label": "text-classification",
}  # fmt: skip
# The hub's names of our scores.
METRICS = {
    "micro_f1": "f1", "macro_f1": "f1", "positive_f1": "f1", "matthews": "matthews_correlation",
    "word_accuracy": "accuracy", "pearson": "pearsonr", "spearman": "spearmanr",
}  # fmt: skip
USE_OF = {
    "classification": "one label for each text", "pair-classification": "one label for each pair of texts",
    "regression": "one number for each text or pair", "tagging": "one tag for each word",
    "multi-label": "any number of labels for each text",
}  # fmt: skip
CRFS = {"crf", "bilstm-crf"}
UNTOLD = ("store", "task", "label", "fusion", "head", "pool")  # fields of a spec that are elsewhere in the card
USES = {
    "words": ('[["a", "room", "in", "Oslo"]]', "lists of words"),
    "pairs": ('["a first text"], ["a second text"]', "pairs of texts"),
    "texts": ('["a room in Oslo"]', "texts"),
}


def model_card(config: Mapping[str, Any], **front_matter: Any) -> ModelCard:
    """The card of an exported head.

    Args:
        config: the head's ``config.json``. front_matter: more fields of the card's data; they override the others.
    """
    data = ModelCardData(**{**_front_matter(config), **front_matter})
    return ModelCard(f"---\n{data.to_yaml()}\n---\n\n{_body(config)}")


def _front_matter(config: Mapping[str, Any]) -> dict[str, Any]:
    spec, data, tasks = config["spec"], _line(config["data"]), _tasks(config)
    types = list(dict.fromkeys(TASK_TYPES.get(task, "other") for _, task in tasks.values()))
    results = [
        EvalResult(
            task_type=TASK_TYPES.get(tasks[part][1], "other") if part in tasks else "other",
            task_name=tasks[part][1] if part in tasks else spec["task"],
            # The hub accepts only an id here, also for a data set that is not on the hub.
            dataset_type=re.sub(r"[^\w.-]+", "-", data).strip("-.") or "unnamed",
            dataset_name=data or "unnamed",
            dataset_split=_line(split),
            metric_type=_line(METRICS.get(score, score)),
            metric_name=_line(name),
            metric_value=value,
        )
        for split, scores in config["scores"].items()
        for name, value in scores.items()
        for part, score in [_of_task(name, tasks)]
    ]
    return {
        "library_name": "fusionkit",
        # An encoder with random weights is not a model of the hub.
        "base_model": None
        if config["encoder_kind"] != "hub" or "untrained" in config["encoding"]["encoder"]
        else config["encoder"],
        "pipeline_tag": types[0] if len(types) == 1 and types[0] != "other" else None,
        "tags": ["fusionkit", "late-fusion", fusion_kind(spec["fusion"]), *(types if len(types) > 1 else [])],
        "metrics": sorted({result.metric_type for result in results}) or None,
        "model_name": f"{_line(','.join(called for called, _ in tasks.values()))} ({spec['fusion']}, {spec['head']})",
        "eval_results": results or None,
    }


def _tasks(config: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """What each task is called in the card, and its kind, by the task's name; the name is ``""`` in a run of one task.
    A task is called by its column, or by its name where each task has a store of its own: columns of several stores
    often have one name.
    """
    spec = config["spec"]
    if not others_of(dict(config)):
        return {"": (spec["label"], spec["task"])}
    tasks = tasks_of(spec["task"])
    called = tasks if spec.get("task_stores") else spec["label"].split(",")
    return {name: (own, task.name) for (name, task), own in zip(tasks.items(), called, strict=True)}


def _columns_of(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The columns by role that each task reads; one entry where all tasks read the same examples."""
    told: Mapping[str, Any] = config["encoding"]["columns"]
    if not config["spec"].get("task_stores"):
        return [told]
    return [told, *(each["encoding"]["columns"] for each in others_of(dict(config)).values())]


def _of_task(score: str, tasks: Mapping[str, Any]) -> tuple[str, str]:
    """The task of a score, and the score's name there; ``all`` for scores over all tasks of a run."""
    if "" in tasks:
        return "", score
    task, own = split_score(score, tasks)
    return ("all" if task is None else task), own


def _body(config: Mapping[str, Any]) -> str:
    spec, encoding, scores = config["spec"], config["encoding"], config["scores"]
    tasks = _tasks(config)
    told = spec["task"] if "" in tasks else ", ".join(f"{column} ({task})" for column, task in tasks.values())
    label, whole = " and ".join(column for column, _ in tasks.values()), "task" if "" in tasks else "tasks"
    names = (label, spec["fusion"], spec["head"], config["encoder"], told, config["data"])
    label, fusion, head, encoder, task, data = map(escaped, names)
    read_kinds = list(dict.fromkeys(map(input_kind, _columns_of(config))))
    example, kinds = USES[read_kinds[0]][0], " or ".join(USES[kind][1] for kind in read_kinds)
    others = "".join(
        f"`fusionkit.load(…, takes={kind!r})` loads the tasks that read {kind}.\n\n" for kind in read_kinds[1:]
    )
    place = ', encoder="FOLDER OF THE ENCODER"' if config["encoder_kind"] == "folder" else ""
    tested = (
        "Scored on test, which was read once. The epoch was chosen by validation."
        if "test" in scores
        else "Scored on validation, which also chose the epoch: the score is optimistic."
    )
    pooled = f", pooled by {spec['pool']}" if spec["pool"] else ""
    options = [(name, "–" if value is None else str(value)) for name, value in spec.items() if name not in UNTOLD]
    frozen = _method(config) == FROZEN
    counts = {
        "fusion": config.get("fusion_parameters"),
        "head": config.get("head_parameters"),
        "encoder, frozen" if frozen else "encoder": config.get("encoder_parameters"),
    }
    parameters = [(part, f"{count:,}") for part, count in counts.items() if count is not None]
    layers = ", ".join(map(str, config["layers"]))
    read = f"layer {layers}" if len(config["layers"]) == 1 else f"layers {layers}"
    known = "\n- Answers with none but the labels above." if config["labels"] else ""
    added = "" if frozen else ", or than its method leaves room for in the encoder,"
    crfs = CRFS & {*each_head(spec["head"])}
    crf = "\n- A CRF decides for whole sequences: there are no probabilities." if crfs else ""
    return f"""\
# {label}: {fusion} fusion and {head} head over {encoder}

A fusionkit head for the {whole} {task}. It reads {read} of {_encoder(config)}

## Intended use

For {kinds} like those of the data set below: it gives {_uses(tasks)}.
It was measured on that data alone; measure it on your own with `fusionkit evaluate FOLDER DATA` before you rely on it.

## Data

{_table(["what", "which"], _data_rows(config))}

## Scores

Data set: {data or "–"}. One run, data seed {spec["data_seed"]}, weights' seed
{spec["init_seed"]}. Scores are fractions from 0 to 1, correlations from −1.

{_scores(config, tasks)}

{tested}

## Use

```python
import fusionkit

predictor = fusionkit.load("FOLDER OR HUB ID OF THIS MODEL"{place})
predictor.predict({example})
```

{others}From the command line: `fusionkit predict FOLDER --input new.jsonl --json`.

{_code(config)}## Encoder

Another encoder than this is refused when the head is loaded.

{_table(["what", "which"], _encoder_rows(config))}

## Parameters

{_table(["part", "parameters"], parameters)}

## Training

On the train split, over rows of {config["rows"]}{pooled}.

{_table(["option", "value"], [*options, ("best epoch", str(config.get("best_epoch", "–")))])}

{_labels(config)}## Limits

- Takes {kinds}, as in training; what is longer than {encoding["max_length"]} sub-tokens{added} is cut.{known}{crf}
- Scores were measured over {_measured_over(config)}
- Languages, domains and kinds of text other than the data set's were not measured.
"""


def _method(config: Mapping[str, Any]) -> str:
    return str(config["spec"]["method"])


def _measured_over(config: Mapping[str, Any]) -> str:
    """The states that the scores are of."""
    spec, rounded = config["spec"], "live ones differ by the rounding of the store's dtype."
    if _method(config) == FROZEN:
        return f"stored states; {rounded}"
    if spec.get("from_layer") is not None:
        return f"states that the trained layers computed from stored ones of layer {spec['from_layer']}; {rounded}"
    return "states that the trained encoder computed from the text, in float32."


def _encoder(config: Mapping[str, Any]) -> str:
    """Whether the encoder was trained, and where it is."""
    method = escaped(_method(config))
    if config["encoder_kind"] == "inside":
        trained = "which is frozen" if method == FROZEN else f"which was trained with the method {method}"
        return f"the\nencoder in the folder encoder, {trained}."
    if config.get("delta_sha256"):
        trained = "What was trained is in delta.safetensors, the rest is not here."
        return f"an\nencoder trained with the method {method}. {trained}"
    return "a frozen\nencoder, which is not part of this model."


def _uses(tasks: Mapping[str, tuple[str, str]]) -> str:
    """What a head returns, for each task."""
    found = [(column, USE_OF.get(task, "one answer for each")) for column, task in tasks.values()]
    return " and ".join(f"{use} ({escaped(column)})" for column, use in found)


def _data_rows(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The data that the head was trained on."""
    spec = config["spec"]
    drawn = f"{spec['shots']} a class, drawn by seed {spec['data_seed']}" if spec.get("shots") else "all"
    read = [", ".join(f"{role} {name}" for role, name in each.items() if name) for each in _columns_of(config)]
    labels = spec["label"].split(",") if len(read) > 1 else [spec["label"]]
    called = [f" of {name}" for name in _tasks(config)] if len(read) > 1 else [""]
    found = [
        ("name", config["data"]),
        *(
            (f"columns{of}", f"{columns}, labels {label}")
            for of, columns, label in zip(called, read, labels, strict=True)
        ),
        ("training examples", drawn),
        ("fingerprint of its examples", config["data_identity"]),
    ]
    stores = spec.get("task_stores") or spec.get("mix") or spec.get("store")
    return [*found, ("store of its states", stores)] if stores else found


def _scores(config: Mapping[str, Any], tasks: Mapping[str, tuple[str, str]]) -> str:
    """The table of scores, one per task; then the note on means over seeds, if there are several."""
    scores, several = config["scores"], config.get("over_seeds")
    names = dict.fromkeys(name for found in scores.values() for name in found)
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(_of_task(name, tasks)[0], []).append(name)
    spreads = {split: f"{split}, over seeds" for split in (several or {}).get("scores", {})}
    floors = {
        f"{split}, {name}": found for name, own in (config.get("floors") or {}).items() for split, found in own.items()
    }
    parts = []
    for part, own in groups.items():
        rows = [
            [
                _of_task(name, tasks)[1],
                *(f"{found[name]:.4f}" if name in found else "–" for found in scores.values()),
                *(_spread((several or {})["scores"][split].get(name)) for split in spreads),
                *(f"{found[name]:.4f}" if name in found else "–" for found in floors.values()),
            ]
            for name in own
        ]
        head = "" if part == "" else f"### {escaped(' '.join(tasks[part]) if part in tasks else 'together')}\n\n"
        parts.append(head + _table(["metric", *scores, *spreads.values(), *floors], rows))
    if several:
        runs = escaped(str(several["runs"]))
        parts.append(
            f"Over seeds: mean ± standard deviation of {runs} runs that differ in their seeds alone,\n"
            "this one among them, and Student's 95 % interval of the mean."
        )
    if floors:
        parts.append("A floor is what is reached on the same training examples without an encoder.")
    return "\n\n".join(parts)


def _spread(found: Mapping[str, float] | None) -> str:
    if found is None:
        return "–"
    return f"{found['mean']:.4f} ± {found['std']:.4f} ({found['low']:.4f} … {found['high']:.4f})"


def _code(config: Mapping[str, Any]) -> str:
    """The note on fusions or heads that are not fusionkit's, whose code is not part of the export."""
    if not config.get("sources"):
        return ""
    rows = [(source["name"], str(source["module"]), str(source["sha256"] or "–")) for source in config["sources"]]
    return f"""\
## Code

Not all of it is fusionkit's own. These modules must be importable, and are imported only where they are
trusted by name: `trust_modules=[…]`, or `--trust-module` on the command line.

{_table(["name", "module", "sha256 of its file in training"], rows)}

"""


def _encoder_rows(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    encoding, identity = config["encoding"], config["encoding"]["encoder"]
    where = {"hub": "on the hub", "bundled": "comes with fusionkit[demo]", "inside": "in this folder"}.get(
        config["encoder_kind"], "a local folder"
    )
    return [
        ("name", f"{config['encoder']} ({where})"),
        ("revision", str(identity.get("revision") or "–")),
        ("weights, sha256", identity["weights"]),
        ("tokenizer, sha256", identity["tokenizer"]),
        ("compute dtype", encoding["compute_dtype"]),
        ("longest input, sub-tokens", str(encoding["max_length"])),
    ]


def _labels(config: Mapping[str, Any]) -> str:
    """The classes of each task that has any."""
    others = others_of(dict(config))
    found = []
    for (column, _), part in zip(_tasks(config).values(), [config, *others.values()], strict=True):
        if part["labels"]:
            cut = part.get("threshold")
            how = "One of" if cut is None else f"Each whose probability is above {cut:.4g}, of"
            of_column = f"{escaped(column)}: " if others else ""
            found.append(f"{of_column}{how}: {', '.join(map(escaped, part['labels']))}.")
    return "\n".join(["## Labels", "", *found, "", ""]) if found else ""


def escaped(text: str) -> str:
    """Text from data as plain words in Markdown, in one line."""
    plain = re.sub(r"([\\`*_{}\[\]<>#+!|~$&@])", r"\\\1", _line(text))
    # Bare addresses would become links.
    return re.sub(r"(?i)(www)\.|(https?|ftp|mailto):", lambda found: found[0][:-1] + "\\" + found[0][-1], plain)


def _line(text: str) -> str:
    """Text without line breaks and other control characters, bidirectional ones included."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head, *body = ([escaped(cell) for cell in row] for row in (header, *rows))
    lines = [head, ["---"] * len(header), *body]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
