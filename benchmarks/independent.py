"""Do the scores agree with a plain training loop that shares no code with fusionkit?

    python benchmarks/independent.py DATA WORK [--only CASE …] [--seeds N]

DATA holds conll2003, atis and sst2; WORK takes stores and runs and keeps them. The loop is plain PyTorch over
transformers: it reads the files, cuts words into sub-tokens, runs MiniLM, keeps the states in float16, trains and
scores. Spans are counted by seqeval. Both sides have the same settings: AdamW without decay, a rate of 2e-3 that falls
linearly to 0, batches of 32, a head with two hidden layers of 256, the best epoch by validation. The encoder has no
dropout on either side. They differ in first weights, in the order of the examples and, where only some are used, in the
draws of train and of validation. fusionkit gives the loop the encoder's folder, nothing else. Printed: a Markdown table
of test scores in percent, mean ± standard deviation over the seeds, and the difference of the means in standard errors;
with three seeds two standard errors are p = 0.12. Runs of another number of seeds need another WORK.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from seqeval.metrics import f1_score
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer
from transformers.utils import logging

from fusionkit.bundled import minilm_folder
from fusionkit.runs.folder import RunsFolder
from fusionkit.runs.record import is_floor

Example = tuple[list[str], list[str]]  # words and their tags; or one text and its label
SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Case:
    """A data set, what is learned, and the options of both sides."""

    name: str
    label: str
    epochs: int
    fusions: tuple[str, ...] = ("last", "linear", "attention", "concat")
    draw: int | None = None  # sentences of train
    validation: int | None = None  # so many choose the epoch
    encoder_rate: float | None = None  # trains the encoder, too

    @property
    def tags(self) -> bool:
        return self.label in ("tags", "slots")


CASES = {
    "CoNLL-2003": Case("conll2003", "tags", 5),
    "CoNLL-2003, 512 sentences": Case("conll2003", "tags", 50, draw=512, validation=800),
    "ATIS slots": Case("atis", "slots", 10),
    "ATIS intents": Case("atis", "intent", 10),
    "SST-2": Case("sst2", "label", 5),
    "ATIS slots, full fine-tuning": Case("atis", "slots", 3, ("last",), encoder_rate=1e-4),
}


def examples(data: Path, case: Case, split: str) -> list[Example]:
    """The split as its file has it."""
    folder = data / case.name
    if case.name == "conll2003":
        return list(sentences((folder / f"{split}.txt").read_text(encoding="utf-8").splitlines()))
    if case.name == "sst2":
        with (folder / f"{split}.csv").open(encoding="utf-8", newline="") as file:
            return [([line["sentence"]], [line["label"]]) for line in csv.DictReader(file)]
    lines = [json.loads(line) for line in (folder / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()]
    return [(line["tokens"], line["slots"] if case.tags else [line["intent"]]) for line in lines]


def sentences(lines: Sequence[str]) -> Iterator[Example]:
    """Sentences of a file in CoNLL's columns, with the tags as IOB2."""
    words, tags = list[str](), list[str]()
    for line in [*lines, ""]:
        word, *_, tag = line.split() or ["", ""]
        if not word or word == "-DOCSTART-":
            if words:
                yield words, tags
            words, tags = [], []
            continue
        before = tags[-1] if tags else "O"
        if tag.startswith("I-") and before[2:] != tag[2:]:
            tag = "B-" + tag[2:]
        words.append(word)
        tags.append(tag)


class Encoder(nn.Module):
    """MiniLM: a vector a layer for each word of some examples (its first sub-token), or for each text (the mean)."""

    def __init__(self, tags: bool) -> None:
        super().__init__()
        self.tags, folder = tags, minilm_folder()
        self.model = AutoModel.from_pretrained(folder, attn_implementation="sdpa")
        self.tokenizer = AutoTokenizer.from_pretrained(folder)

    def forward(self, texts: Sequence[list[str]]) -> Tensor:
        """``[words or texts, 7, 384]``."""
        batch = self.tokenizer(
            list(texts), is_split_into_words=True, padding=True, truncation=True, return_tensors="pt"
        )
        layers: Tensor = torch.stack(self.model(**batch, output_hidden_states=True).hidden_states, 2)
        if not self.tags:
            mask: Tensor = batch["attention_mask"][:, :, None, None]
            return (layers * mask).sum(1) / mask.sum(1)
        firsts = []
        for number in range(len(texts)):
            words = batch.word_ids(number)
            firsts += [(number, words.index(word)) for word in sorted({*words} - {None})]
        rows, places = zip(*firsts, strict=True)
        return layers[list(rows), list(places)]


class Head(nn.Module):
    """A fusion of the seven layers, and two hidden layers of 256."""

    def __init__(self, fusion: str, classes: int) -> None:
        super().__init__()
        self.fusion = fusion
        self.mix = nn.Parameter(torch.zeros(7))
        self.scale = nn.Parameter(torch.ones(()))
        self.query = nn.Parameter(torch.zeros(384))
        self.project = nn.Linear(6 * 384, 256)
        width = 256 if fusion == "concat" else 384
        self.layers = nn.Sequential(
            nn.Linear(width, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, classes)
        )

    def forward(self, states: Tensor) -> Tensor:
        """``[rows, 7, 384]`` → ``[rows, classes]``."""
        if self.fusion == "last":
            fused = states[:, -1]
        elif self.fusion == "linear":
            fused = self.scale * (self.mix.softmax(0)[:, None] * states).sum(1)
        elif self.fusion == "attention":
            fused = ((states @ self.query).softmax(1)[:, :, None] * states).sum(1)
        else:
            fused = self.project(states[:, 1:].flatten(1))
        return self.layers(fused)  # type: ignore[no-any-return]


class Split:
    """Examples, the classes of their rows, and where each example's rows begin."""

    def __init__(self, found: list[Example], classes: dict[str, int]) -> None:
        self.texts, self.tags = [text for text, _ in found], [tags for _, tags in found]
        self.targets = torch.tensor([classes.get(tag, -1) for tags in self.tags for tag in tags])
        self.offsets = np.cumsum([0, *map(len, self.tags)])

    def rows(self, of: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(np.concatenate([np.arange(self.offsets[i], self.offsets[i + 1]) for i in of]))

    def score(self, found: Tensor, names: list[str], tags: bool) -> float:
        """F1 of spans, or accuracy, in percent."""
        if not tags:
            return 100 * float((found == self.targets).float().mean())
        told = [names[number] for number in found]
        guessed = [told[first:end] for first, end in zip(self.offsets[:-1], self.offsets[1:], strict=True)]
        return 100 * float(f1_score(self.tags, guessed))


@torch.no_grad()
def states_of(encoder: Encoder, split: Split) -> Tensor:
    """The states of all rows in float16, texts of one length after the other."""
    order = np.argsort([len(" ".join(text)) for text in split.texts], kind="stable")
    states = torch.empty(len(split.targets), 7, 384, dtype=torch.float16)
    for at in range(0, len(order), 64):
        chosen = order[at : at + 64]
        states[split.rows(chosen)] = encoder([split.texts[i] for i in chosen]).half()
    return states


def plain_scores(data: Path, case: Case, fusion: str, seeds: int, kept: dict[str, Tensor]) -> list[float]:
    """The loop's test scores, one a seed. ``kept``: states of the splits, filled by the first call."""
    found = {split: examples(data, case, split) for split in SPLITS}
    watched = np.random.default_rng(0).permutation(len(found["validation"]))[: case.validation]
    found["validation"] = [found["validation"][i] for i in watched]
    names = sorted({tag for _, tags in found["train"] for tag in tags})
    splits = {name: Split(each, {tag: at for at, tag in enumerate(names)}) for name, each in found.items()}
    train, scores = splits["train"], []
    encoder = Encoder(case.tags).eval()
    if case.encoder_rate is None and not kept:
        kept |= {name: states_of(encoder, split) for name, split in splits.items()}
    for seed in range(seeds):
        torch.manual_seed(seed)
        random = np.random.default_rng(seed)
        head = Head(fusion, len(names))
        groups = [{"params": head.parameters(), "lr": 2e-3}]
        if case.encoder_rate is not None:
            encoder = Encoder(case.tags).eval()
            groups.append({"params": encoder.parameters(), "lr": case.encoder_rate})
        optimizer = torch.optim.AdamW(groups, weight_decay=0.0)
        drawn = random.permutation(len(train.texts))[: case.draw]
        steps = case.epochs * math.ceil(len(drawn) / 32)
        fall = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
        best = (-1.0, 0.0)
        for _ in range(case.epochs):
            order = random.permutation(drawn)
            for at in range(0, len(order), 32):
                chosen = order[at : at + 32]
                rows = train.rows(chosen)
                states = kept["train"][rows].float() if kept else encoder([train.texts[i] for i in chosen])
                optimizer.zero_grad()
                nn.functional.cross_entropy(head(states), train.targets[rows]).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                fall.step()
            reached = []
            for name in ("validation", "test"):
                states = kept[name] if kept else states_of(encoder, splits[name])
                with torch.no_grad():
                    decided = torch.cat([head(part.float()).argmax(1) for part in torch.split(states, 4096)])
                reached.append(splits[name].score(decided, names, case.tags))
            if reached[0] > best[0]:
                best = (reached[0], reached[1])
        scores.append(best[1])
    return scores


def our_scores(data: Path, work: Path, name: str, case: Case, fusion: str, seeds: int) -> list[float]:
    """The test scores of `fusionkit fit` with the same settings, one a seed."""
    rows = "words" if case.tags else "mean"
    if case.encoder_rate is not None:
        rows = "tokens"
    store, runs = work / f"{case.name}-{rows}.store", work / f"{name} {fusion}".replace(" ", "-").replace(",", "")
    fusionkit = [sys.executable, "-m", "fusionkit"]
    subprocess.run(
        [*fusionkit, "encode", str(data / case.name), "--rows", rows, "--out", str(store)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    command = [*fusionkit, "fit", str(store), "--label", case.label, "--fusion", fusion, "--seeds", str(seeds)]
    command += ["--head", "tagger" if case.tags else "classifier", "--epochs", str(case.epochs), "--out", str(runs)]
    if case.draw is not None:
        classes = 4  # of entities: `--shots` is multiplied by the number of classes
        command += ["--shots", str(case.draw // classes), "--validate-on", str(case.validation)]
    if case.encoder_rate is not None:
        command += ["--method", "full", "--encoder-lr", str(case.encoder_rate)]
        command += ["--warmup", "0", "--weight-decay", "0", "--encoder-dropout", "0"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    scores = [100 * record["score"] for record in RunsFolder(runs).records() if not is_floor(record)]
    assert len(scores) == seeds, f"{runs} has runs of another call"
    return scores


def told(scores: list[float]) -> str:
    return f"{statistics.mean(scores):.1f} ± {statistics.stdev(scores):.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--seeds", type=int, default=3, help="2 or more")
    options = parser.parse_args()
    if options.seeds < 2:
        parser.error("--seeds: 2 or more, because deviations are compared")
    options.work.mkdir(parents=True, exist_ok=True)
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    lines = ["| | fusion | loop | fusionkit | difference | in standard errors |", "|---|---|---|---|---|---|"]
    for name in options.only:
        case, kept = CASES[name], dict[str, Tensor]()
        for fusion in case.fusions:
            plain = plain_scores(options.data, case, fusion, options.seeds, kept)
            ours = our_scores(options.data, options.work, name, case, fusion, options.seeds)
            off = statistics.mean(ours) - statistics.mean(plain)
            error = math.sqrt((statistics.variance(plain) + statistics.variance(ours)) / options.seeds)
            apart = f"{off / error:+.1f}" if error else "–"
            lines.append(f"| {name} | `{fusion}` | {told(plain)} | {told(ours)} | {off:+.1f} | {apart} |")
            print(lines[-1], flush=True)
    print("\n" + "\n".join(lines))


if __name__ == "__main__":
    main()
