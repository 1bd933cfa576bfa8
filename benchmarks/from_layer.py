"""How much faster is a step from a stored layer than from the text, and is it as much as the layer passes predict?

    python benchmarks/from_layer.py STORE [--method NAME …] [--batch N] [--steps N] [--json]
    python benchmarks/from_layer.py --large FOLDER      a random encoder of roberta-large's shape, to encode STORE with

STORE has rows of `tokens` and all layers; one thread. Each method takes the step of `fit --method` over the same
minibatches of training examples, with reading, head, backward pass and AdamW: from the text, and from the highest
stored layer below all layers that the method changes. The two take turns, so that other work on the machine disturbs
both alike. Printed: the median processor time per step in milliseconds, the measured ratio, and the ratio counted from
layer passes (`fusionkit/tuning/start.py`). Claim: the measured ratio is at least 0.8 of the counted one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
import transformers

from fusionkit.bundled import minilm_folder
from fusionkit.fit.executor.context import SweepContext
from fusionkit.fit.sweep.grid import expand
from fusionkit.machine.memory import keep_freed_memory
from fusionkit.store import Store, open_store
from fusionkit.tuning.start import start_of
from fusionkit.tuning.trainer import TunedRun

CLAIM = 0.8
hf: Any = transformers
LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}


def make_large(folder: Path) -> None:
    """Write a random encoder of roberta-large's shape, with the bundled encoder's tokenizer."""
    tokenizer = hf.AutoTokenizer.from_pretrained(minilm_folder())
    sizes = {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 2}
    ids = {"pad_token_id": tokenizer.pad_token_id}
    torch.manual_seed(0)
    hf.RobertaModel(hf.RobertaConfig(**LARGE, **sizes, **ids), add_pooling_layer=False).save_pretrained(folder)
    tokenizer.model_max_length = 510
    tokenizer.save_pretrained(folder)


def default_methods(depth: int) -> list[str]:
    """Methods that train the last layer, the upper half of the layers, and adapters in the upper half."""
    half = depth // 2
    return ["top:1", f"top:{half}", f"houlsby:64,layers=-{half}:"]


def compared(store: Store, method: str, batch: int, steps: int) -> dict[str, Any]:
    """Milliseconds per step from the text and from the stored layer, their ratio and the counted ratio."""
    context, specs = SweepContext(store), []
    for how in ("none", "auto"):
        (spec,) = expand(
            store, methods=[method], fusions=["last"], head="linear-classifier", pool="mean", batch_sizes=(batch,),
            from_layer=how,
        )  # fmt: skip
        specs.append(spec)
    runs = [TunedRun(spec, context, context.data(spec)) for spec in specs]
    layer = specs[1].from_layer
    assert layer is not None
    took: list[list[float]] = [[], []]
    for number in range(steps + 1):
        for run, seconds in zip(runs, took, strict=True):
            began = time.process_time()
            run.step(number)
            seconds.append(time.process_time() - began)
    text, stored = (1e3 * statistics.median(each[1:]) for each in took)
    start = start_of(store, method, layer)
    found = {"method": method, "layer": layer, "of": start.depth, "text": text, "stored": stored}
    ratios = {"ratio": text / stored, "counted": start.text / start.stored}
    return found | ratios | {"share": ratios["ratio"] / ratios["counted"], "off": start.off}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path, nargs="?")
    parser.add_argument("--method", nargs="+")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--large", type=Path)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    keep_freed_memory()
    if given.large is not None:
        make_large(given.large)
        return
    if given.store is None:
        parser.error("STORE is missing")
    store, rows = open_store(given.store), []
    depth = store.manifest["encoder"]["layers"] - 1
    for method in given.method or default_methods(depth):
        rows.append(found := compared(store, method, given.batch, given.steps))
        if not given.json:
            print(
                f"{method:<24} from layer {found['layer']} of {depth}: text {found['text']:8.1f} ms   stored "
                f"{found['stored']:8.1f}   ratio {found['ratio']:.2f}   counted {found['counted']:.2f}   share "
                f"{found['share']:.2f} (claim: {CLAIM})",
                flush=True,
            )
    if given.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
