"""The tables of fusions, heads, methods and options in the documents, made from the code and from docstrings.

    python docs/tables.py    # write them anew

A table stands between ``<!-- table: NAME -->`` or ``<!-- options: COMMAND -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import click
import torch

from fusionkit.cli.main import group
from fusionkit.fusions import FUSIONS, fusion_class, fusion_layers, fusion_parameters, named, options_of
from fusionkit.fusions.table import all_layers
from fusionkit.heads import HEADS, build_head
from fusionkit.heads import REGISTRY as HEAD_REGISTRY
from fusionkit.methods import METHODS, method_class, method_named, parse_method
from fusionkit.methods.structure import Structure, structure_of
from fusionkit.options.tables import FIT

DOCS = Path(__file__).resolve().parent
MARK = re.compile(r"(?m)^(<!-- (table|options): ([a-z-]+) -->\n)(?:.*\n)*?(<!-- end -->)$")
MINILM, LARGE = (6, 384), (24, 1024)  # the encoder's last layer and its width
BERT_LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
WIDTHS = {"top": 2, "houlsby": 64, "lora": 8, "prompt": 20, "prefix": 20, "pals": 204, "low-rank": 100}  # counted so
LAST = 9  # stands for L where the layers of any encoder are said
OWN = {  # what each of several tasks has for itself, by what they share
    "encoder": "the parts that it adds",
    "method": "all that it trains",
    "nothing": "nothing",
    "alone": "refused",
}
PAGES = {  # what help lists in full
    "fusion": ("A fusion", "fusions.md"), "head": ("A head", "heads.md"), "method": ("a method", "methods.md"),
}  # fmt: skip
# What is given as an example where a choice or a default does not show it.
EXAMPLES = {
    "plan method": "pals:126", "plan fusion": "extra-layers:1", "tasks": "8", "budget-per-task": "400000",
    "sampling": "square-root", "steps-per-epoch": "2400",
    "evaluate task": "mrpc", "encode out": "my.store", "report out": "report.html", "run out": "WORK", "out": "runs",
    "encoder": "roberta-large", "encoder-revision": "main", "layers": "0,6,12", "max-length": "128",
    "mask-seed": "1", "mask-share": "0.2", "config": "sst2", "revision": "main", "text": "sentence", "pair": "answer",
    "columns": "index,word,_,tag", "limit": "1000", "floor": "majority,tfidf", "untrained": "0",
    "tokens": "words", "device": "cuda:0", "budget": "50GB", "parts": "3/16", "cluster": "slurm",
    "cluster-config": "cluster.yaml", "workers": "4", "sweep": "sweep.yaml", "task": "topic=classification",
    "label": "topic=category", "fusion": "dwatt:scale=yes", "fusion-layers": "-4:", "head": "crf", "shots": "16",
    "draw-from": "runs/3f2a91c0d4e5b6a7", "seeds": "5", "data-seeds": "5", "init-seeds": "2", "lr": "5e-4",
    "epochs": "20", "max-steps": "500", "batch-size": "16", "warmup": "0.1", "weight-decay": "0.01",
    "clip-norm": "1", "dropout": "0.1", "label-smoothing": "0.1", "patience": "3", "validate-on": "800",
    "validate-every": "5", "init-from": "runs/3f2a91c0d4e5b6a7", "evaluate-on": "de.store", "threads": "2",
    "set": "encoder=roberta-large", "only": "sst2", "known": "docs/records/first-page.jsonl",
    "by": "fusion", "average": "data", "metric": "macro_f1", "baseline": "last",
    "figures": "figures", "store": "my.store", "title": "'Layers of MiniLM'", "about": "'One rate each.'",
    "input": "new.jsonl", "to": "my-head", "lm-head": "embeddings",
    "split": "validation", "evaluate label": "intent=category", "errors": "wrong.csv",
    "method": "houlsby:64", "encoder-lr": "2e-5", "layer-decay": "0.9", "encoder-dropout": "0", "accumulate": "4",
    "from-layer": "4",
    "save-every": "500", "trust-module": "mylab.mix", "sample": "64", "keep": "demo",
}  # fmt: skip


def main() -> None:
    """Write the tables of all pages."""
    for path in sorted(DOCS.glob("*.md")):
        before = path.read_text(encoding="utf-8")
        if (after := with_tables(before)) != before:
            path.write_text(after, encoding="utf-8")
            print(f"docs/{path.name}: tables written")


def with_tables(page: str) -> str:
    """A page with its tables made anew."""

    def written(mark: re.Match[str]) -> str:
        made = TABLES[mark[3]]() if mark[2] == "table" else options_of_command(mark[3])
        return f"{mark[1]}{made}\n{mark[4]}"

    return MARK.sub(written, page)


def options_of_command(name: str) -> str:
    """Every option of a command: what it does, its default, an example."""
    command = group.get_command(click.Context(group), name)
    assert command is not None, f"no command {name}"
    rows = []
    for each in command.params:
        if isinstance(each, click.Option):
            told, _, default = help_of(name, each).partition(" [default: ")
            told = f"{markdown(told)}{choices_of(each)}"
            rows.append([f"`{each.opts[0]}`", told, markdown(default.rstrip("].")) or default_of(each)])
            rows[-1].append(f"`{example_of(name, each)}`")
    return table(["option", "what it does", "default", "example"], rows)


def help_of(command: str, option: click.Option) -> str:
    """What help says of an option; in place of all fusions, heads or methods a link to their page."""
    name = option.opts[0].removeprefix("--")
    if command == "fit" and name in PAGES:
        what, page = PAGES[name]
        return FIT[name].help.replace(what, f"{what} ([list]({page}))", 1)
    return option.help or ""


def choices_of(option: click.Option) -> str:
    """The values that an option can have, where its help does not name them all."""
    choices = option.type.choices if isinstance(option.type, click.Choice) else []
    told = set(re.findall(r"[\w-]+", option.help or ""))
    return "" if told.issuperset(choices) else f" One of {', '.join(f'`{choice}`' for choice in choices)}."


def default_of(option: click.Option) -> str:
    """What an option is where it is not given; nothing where that is no value."""
    if option.required:
        return "required"
    shown = option.default if option.show_default and option.default not in (None, ()) else ""
    return f"`{shown[0] if isinstance(shown, tuple) else shown}`" if shown != "" else ""


def example_of(command: str, option: click.Option) -> str:
    """The option with a value that it can have."""
    name = option.opts[0].removeprefix("--")
    if option.is_flag:
        return f"--{name}"
    if isinstance(option.type, click.Choice):
        others = [choice for choice in option.type.choices if choice != option.default]
        return f"--{name} {(others or option.type.choices)[0]}"
    return f"--{name} {EXAMPLES.get(f'{command} {name}', EXAMPLES.get(name, ''))}"


def fusions_table() -> str:
    """Every fusion: what it is, what it reads, how many numbers it learns."""
    rows = []
    for name in FUSIONS:
        fusion = fusion_class(name)
        spelled = named(name, fusion)
        argument = {"r": ":8", "h": ":204"}.get(spelled.rpartition(":")[2], ":1")
        counts = [count_of(re.sub(":[a-z]+$", argument, spelled), *size) for size in (MINILM, LARGE)]
        each = {"n": " a layer", "r": " at r = 8", "h": " at h = 204"}.get(spelled.rpartition(":")[2], "")
        rows.append(
            [
                f"`{spelled}`",
                first_line(sys.modules[fusion.__module__]),
                layers_of(fusion),
                sentence(fusion, "Parameters"),
            ]
            + [f"{count:,}{each if count else ''}" for count in counts]
        )
    header = ["`--fusion`", "what it is", "layers", "formula of parameters"]
    return table([*header, "parameters, MiniLM (6 × 384)", "parameters, BERT-large (24 × 1024)"], rows)


def options_table(classes: Mapping[str, type[Any]]) -> str:
    """Every one of these that has options, with what its docstring says of them."""
    rows = [
        [f"`{name}`", paragraph(sys.modules[made.__module__], "Options")]
        for name, made in classes.items()
        if any(not option.required for option in options_of(made).values())
    ]
    return table(["of", "options"], rows)


def heads_table() -> str:
    """Every head: what it is, its tasks, how many numbers it learns, where dropout acts."""
    rows = []
    for name, entry in HEADS.items():
        made = HEAD_REGISTRY.load(name).value
        with torch.device("meta"):
            count = sum(p.numel() for p in build_head(name, 384, 9, 0.0).parameters())
        told = [sentence(made, word) for word in ("Parameters", "Dropout acts on", "Source")]
        rows.append([f"`{name}`", paragraph(made), ", ".join(entry.tasks), told[0], f"{count:,}", *told[1:]])
    header = ["`--head`", "what it is", "task", "formula of parameters", "parameters at d = 384, C = 9"]
    return table([*header, "dropout acts on", "source"], rows)


def methods_table() -> str:
    """Every method: what it does, how many numbers it trains, from which layer on."""
    rows = []
    for name, entry in METHODS.items():
        base, lowest, depth = trained_by(counted := sized(name), False)
        rows.append(
            [
                f"`{method_named(name)}`",
                f"{entry.summary.rstrip('.')} ({entry.paper.replace(' (', ', ').rstrip(')')})",
                f"`{counted}` {base:,}",
                "none" if lowest > depth else "embeddings" if lowest == 0 else f"{lowest} of {depth}",
                "yes" if entry.merges else "no",
            ]
        )
    return table(["`--method`", "what it does", "weights trained in BERT-base", "lowest layer", "merges"], rows)


def method_details_table() -> str:
    """Every method: its formula of parameters, how it starts, what each of several tasks has for itself, its rates."""
    rows = []
    for name, entry in METHODS.items():
        large, *_ = trained_by(counted := sized(name), True)
        rows.append(
            [
                f"`{method_named(name)}`",
                sentence(method_class(name), "Parameters"),
                f"`{counted}` {large:,}",
                "yes" if entry.starts_as_encoder else "no",
                "nothing" if entry.shared == "encoder" and entry.merges else OWN[entry.shared],
                ", ".join(f"{rate:g}" for rate in entry.rates) or "none",
            ]
        )
    header = ["`--method`", "formula of weights trained", "weights trained in BERT-large", "starts as the encoder"]
    return table([*header, "each task's own", "rates of a grid"], rows)


def sized(name: str) -> str:
    """A method with the size for which its weights are counted."""
    return f"{name}:{WIDTHS[name]}" if name in WIDTHS else name


def trained_by(method: str, large: bool) -> tuple[int, int, int]:
    """How many numbers a method trains of BERT, the lowest layer that it touches, and how many layers there are."""
    model, structure = bert(large)
    attached = parse_method(method).build().attach(model, structure)
    count = attached.count()
    attached.detach()
    return count, attached.lowest_layer, structure.depth


@cache
def bert(large: bool) -> tuple[Any, Structure]:
    """BERT's shapes without weights."""
    import transformers

    with torch.device("meta"):
        config: Any = transformers.BertConfig
        model = transformers.BertModel(config(**(BERT_LARGE if large else {})))
    return model, structure_of(model)


TABLES: dict[str, Callable[[], str]] = {
    "fusions": fusions_table,
    "options": lambda: options_table({name: fusion_class(name) for name in FUSIONS}),
    "heads": heads_table,
    "methods": methods_table,
    "method-details": method_details_table,
    "method-options": lambda: options_table({name: method_class(name) for name in METHODS}),
}


def count_of(name: str, last: int, hidden: int) -> int:
    """How many numbers a fusion learns over an encoder."""
    return fusion_parameters(name, len(fusion_layers(name, tuple(range(last + 1)), last + 1)), hidden)


def layers_of(fusion: type[Any]) -> str:
    """The layers that a fusion reads by itself, of L: ``0…L``, or its argument where that names one."""
    reads = getattr(fusion, "reads", all_layers)
    argument = [name for name, p in inspect.signature(reads).parameters.items() if p.default is p.empty]
    if argument[1:]:
        return argument[1]
    read = reads(LAST)
    return "L" if read == (LAST,) else f"{read[0]}…L" if read == tuple(range(read[0], LAST + 1)) else str(read)


def first_line(thing: Any) -> str:
    """The first sentence of a docstring, as Markdown."""
    return markdown(paragraph(thing).rstrip("."))


def paragraph(thing: Any, word: str | None = None) -> str:
    """The first paragraph of a docstring, or the one that begins with a word and a colon, without them."""
    parts = [" ".join(part.split()) for part in (inspect.getdoc(thing) or "").split("\n\n")]
    found = next(part for part in parts if word is None or part.startswith(f"{word}: "))
    return markdown(found.removeprefix(f"{word}: "))


def sentence(thing: Any, word: str) -> str:
    """What stands behind ``Parameters:`` or ``Dropout acts on`` in a docstring, up to its full stop; else ``none``."""
    text = " ".join((inspect.getdoc(thing) or "").split())
    found = re.search(rf"\b{word}:? (.+?)(?<!et al)\.(?= |$)", text)
    return markdown(found[1]) if found else "none"


def parameters_said(thing: Any, known: Mapping[str, int]) -> float:
    """The number that a docstring's ``Parameters: 256 d + 66,048`` is, of these values; 0 where it says none."""
    formula = sentence(thing, "Parameters")
    if formula == "none":
        return 0
    plain = re.sub(
        r"(?<=[0-9.a-zA-Z)]) +(?=[a-zA-Z(])", " * ", formula.replace(",", "").replace("²", "**2").replace("·", "*")
    )
    if re.fullmatch(r"[-0-9.a-zA-Z+*/() ]+", plain) is None:
        raise ValueError(f"{formula!r} is no formula")
    found: float = eval(plain, {"__builtins__": {}}, dict(known))
    return found


def markdown(text: str) -> str:
    """Code in single backticks, bars escaped."""
    return re.sub("`+", "`", text).replace("|", "\\|")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


if __name__ == "__main__":
    main()
