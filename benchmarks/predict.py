"""What do many heads behind one encoder cost, compared with as many full models?

    python benchmarks/predict.py [SOURCE] [--heads 1 8 64] [--limit N] [--threads N] [--json]
    python benchmarks/predict.py [SOURCE] --truncated [--json]

SOURCE's train split is encoded once (rows of tokens), and heads are trained over it for one epoch, alternately on its
labels and its tags; speed does not depend on how good they are. Then its texts are predicted by all heads behind one
encoder, as `fusionkit predict` does it, and by as many models, each with a whole encoder of its own. Each contender is
a process of its own, whose largest resident size the kernel reports. It reports the median time of REPEATS passes after
a warm-up. A text's sub-tokens count once, however many heads read them. Both must give the same answers.

With `--truncated`: one head that reads the lower half of the layers, behind the encoder cut above these layers and
behind the whole one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fusionkit.bundled import travel_desk
from fusionkit.encode import encode
from fusionkit.encoder import load_encoder
from fusionkit.fit import RunsFolder, expand, fit
from fusionkit.fit.model.checkpoint import open_runs
from fusionkit.predict import Label, Predictor, Tags, load
from fusionkit.sources import guess_columns, open_source
from fusionkit.specs import EncodeSpec
from fusionkit.store import Store, open_store

REPEATS = 3
WARM_UP = 32  # texts


def encoded(source: str, encoder: str, limit: int | None, out: Path) -> tuple[Store, list[list[Any]]]:
    """A store of tokens of the source's train split, and the split's texts: one column, or two for pairs."""
    opened = open_source(source)
    columns = guess_columns(opened)
    train = opened.splits["train"].head(limit)
    loaded = load_encoder(encoder, words=columns.tokens is not None)
    encode(replace(opened, splits={"train": train}), columns, out, EncodeSpec(rows="tokens"), loaded)
    store = open_store(out)
    frame = store["train"].examples
    if columns.tokens:
        return store, [[list(words) for words in frame[columns.tokens]]]
    return store, [list(frame[name]) for name in (columns.text, columns.pair) if name]


def trained(store: Store, count: int, layers: str | None, out: Path) -> list[Path]:
    """Train this many runs of one epoch, alternately on labels and on tags; returns their folders."""
    columns = store.manifest["columns"]
    kinds: list[dict[str, Any]] = [
        {"task": "classification", "label": name, "pool": "mean"} for name in columns["labels"][:1]
    ]
    kinds += [{"task": "tagging", "label": name} for name in columns["tags"][:1]]
    if not kinds:
        raise SystemExit(f"{store.name} has no column of labels or tags to train heads on")
    chosen: dict[str, Any] = {"fusions": ["attention"], "fusion_layers": [layers], "epochs": [1], "seeds": count}
    by_kind = [expand(store, **kind, **chosen) for kind in kinds]
    specs = [spec for turn in zip(*by_kind, strict=True) for spec in turn][:count]
    fit(store, specs, RunsFolder(out))
    return [out / spec.digest for spec in specs]


def predictors(kind: str, runs: list[str]) -> list[Predictor]:
    """The contender's predictors: one with all heads, or one per head."""
    if kind in ("heads", "cut"):
        return [load(*runs)]
    made = []
    for run in open_runs(runs):
        encoder = load_encoder(run.encoder, words=bool(run.encoding["columns"]["tokens"]))
        # Weights read from one file may share pages of memory, which those of different models cannot.
        for parameter in encoder.model.parameters():
            parameter.data = parameter.data.clone()
        made.append(Predictor([run], encoder))
    return made


def contend(kind: str, runs: list[str], texts: list[list[Any]]) -> dict[str, Any]:
    """One contender's figures, measured in this process."""
    contenders = predictors(kind, runs)
    seconds: list[float] = []
    for repeat in range(REPEATS + 1):
        given = texts if repeat else [column[:WARM_UP] for column in texts]
        began = time.perf_counter()
        found = [contender.predict(*given) for contender in contenders]
        if repeat:
            seconds.append(time.perf_counter() - began)
    told: dict[str, list[Any]] = {}
    likely: dict[str, list[float]] = {}
    for contender, predictions in zip(contenders, found, strict=True):
        for name, run in contender.runs.items():
            answers = [_decided(prediction[name]) for prediction in predictions]
            told[run.folder.name] = [said for said, _ in answers]
            likely[run.folder.name] = [chance for _, chance in answers]
    encoder, max_length = contenders[0].encoder, contenders[0].max_length
    return {
        "tokens": int(encoder.tokenize(texts[0], texts[1] if texts[1:] else None, max_length).token_offsets[-1]),
        "seconds": statistics.median(seconds),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6,
        "layers": encoder.layers,
        "answers": {name: hashlib.sha256(json.dumps(said).encode()).hexdigest() for name, said in told.items()},
        "likely": likely,
    }


def _decided(answer: Any) -> tuple[Any, float]:
    """The label and its probability, or the tags and the mean of their probabilities."""
    assert isinstance(answer, (Label, Tags))
    assert answer.probabilities is not None
    if isinstance(answer, Label):
        return answer.label, answer.probabilities[answer.label]
    chances = [chance for chance in answer.probabilities if chance is not None]
    return answer.tags, statistics.mean(chances) if chances else 0.0


def measured(kind: str, runs: list[Path], texts: Path, threads: int) -> dict[str, Any]:
    """One contender's figures, measured in a process of its own."""
    command = [sys.executable, __file__, "--contender", kind, "--texts", str(texts), "--threads", str(threads)]
    done = subprocess.run([*command, "--runs", *map(str, runs)], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the contender {kind!r} with {len(runs)} runs failed with exit {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def same(one: dict[str, Any], other: dict[str, Any], runs: list[Path]) -> bool:
    """Whether two contenders gave the same answers by these runs, with the same probabilities."""
    return all(
        one["answers"][run.name] == other["answers"][run.name]
        and np.allclose(one["likely"][run.name], other["likely"][run.name], atol=1e-5)
        for run in runs
    )


def speed(found: dict[str, Any]) -> str:
    """Sub-tokens per second and peak memory, as text for a line of the table."""
    return f"{found['tokens'] / found['seconds']:9,.0f} sub-tokens/s {found['peak_mb']:7,.0f} MB"


def affordable(heads: int, parameters: int) -> int:
    """How many encoders fit into half of the memory available now; at least 1, at most ``heads``."""
    lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    [free] = (1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    return max(1, min(heads, free // 2 // (4 * parameters)))


def compare_heads(store: Store, texts: Path, options: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Compare heads behind one encoder with as many full models; returns ratios by name."""
    runs = trained(store, max(options.heads), None, folder / "runs")
    ratios: dict[str, float] = {}
    for count in options.heads:
        one = measured("heads", runs[:count], texts, options.threads)
        copies = min(count, options.most_copies or affordable(count, store.manifest["encoder"]["parameters"]))
        full = measured("models", runs[:copies], texts, options.threads)
        assert same(one, full, runs[:copies]), "answers differ"
        seconds, peak, note = full["seconds"], full["peak_mb"], ""
        if copies < count:
            # Each further model costs the same passes again, and memory for its weights.
            each = store.manifest["encoder"]["parameters"] * 4 / 1e6
            seconds, peak = seconds * count / copies, peak + each * (count - copies)
            note = f"   (extrapolated from {copies} models: more do not fit, or --most-copies)"
        ratios[f"speed_of_{count}_heads_over_full_models"] = seconds / one["seconds"]
        ratios[f"memory_of_{count}_heads_over_full_models"] = one["peak_mb"] / peak
        print(
            f"{count:3} heads: one encoder {speed(one)}"
            f"   full models {speed(one | {'seconds': seconds, 'peak_mb': peak})}"
            f"   {seconds / one['seconds']:5.1f} × as fast in {one['peak_mb'] / peak:.2f} of the memory{note}",
            flush=True,
        )
        first = ratios.setdefault("seconds_of_first", one["seconds"])
        ratios[f"speed_of_{count}_heads_over_{options.heads[0]}"] = first / one["seconds"]
    ratios.pop("seconds_of_first")
    return ratios


def compare_truncated(store: Store, texts: Path, options: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Compare one head over the lower half of the layers behind the cut encoder and behind the whole one."""
    highest = (store.manifest["encoder"]["layers"] - 1) // 2
    runs = trained(store, 1, ",".join(map(str, range(highest + 1))), folder / "runs")
    cut, whole = (measured(kind, runs, texts, options.threads) for kind in ("cut", "models"))
    assert same(cut, whole, runs), "the cut encoder gives other answers"
    assert cut["layers"] < whole["layers"], "the encoder could not be cut"
    print(
        f"layers 0 to {highest}: cut encoder {speed(cut)}   whole {speed(whole)}"
        f"   {whole['seconds'] / cut['seconds']:.2f} × as fast, the same answers"
    )
    return {
        "speed_of_cut_over_whole": whole["seconds"] / cut["seconds"],
        "memory_of_cut_over_whole": cut["peak_mb"] / whole["peak_mb"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("source", nargs="?", default=str(travel_desk("en")))
    parser.add_argument("--encoder", default="minilm")
    parser.add_argument("--heads", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--limit", type=int, help="texts")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--most-copies", type=int, help="full models at once [default: what half of free memory holds]")
    parser.add_argument("--truncated", action="store_true", help="measure the cut encoder instead")
    parser.add_argument("--json", action="store_true", help="print one object of named ratios last")
    parser.add_argument("--contender", choices=("heads", "models", "cut"), help=argparse.SUPPRESS)
    parser.add_argument("--runs", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--texts", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(options.threads)
    if options.contender:
        texts = json.loads(options.texts.read_text(encoding="utf-8"))
        print(json.dumps(contend(options.contender, options.runs, texts)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        store, texts = encoded(options.source, options.encoder, options.limit, folder / "store")
        (folder / "texts.json").write_text(json.dumps(texts), encoding="utf-8")
        compare = compare_truncated if options.truncated else compare_heads
        ratios = compare(store, folder / "texts.json", options, folder)
    if options.json:
        print(json.dumps({name: round(ratio, 3) for name, ratio in ratios.items()}))


if __name__ == "__main__":
    main()
