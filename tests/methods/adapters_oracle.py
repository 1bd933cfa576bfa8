"""Makes adapters_bert.safetensors: a tiny random BERT with the adapters of the library `adapters`, and its output.

It needs an environment of its own, because that library pins an older transformers:

    python -m venv oracle
    oracle/bin/pip install adapters==1.3.0 transformers==4.57.6 torch safetensors
    oracle/bin/python tests/methods/adapters_oracle.py

The file has the encoder's weights (``encoder.``), the adapters' (``adapter.LAYER.PLACE.``), the inputs and the hidden
states (``states.NUMBER``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

WIDTH, HIDDEN, LAYERS = 4, 16, 3
PLACES = {"attention": "attention_adapters", "feed_forward": "output_adapters"}


def main() -> None:
    import adapters  # type: ignore[import-not-found,unused-ignore]
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=30, hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=12,
    )  # fmt: skip
    model: Any = BertModel(config, add_pooling_layer=False)
    kept = {f"encoder.{name}": tensor.clone() for name, tensor in model.state_dict().items()}
    adapters.init(model)
    made = adapters.DoubleSeqBnConfig(non_linearity="gelu", reduction_factor=HIDDEN / WIDTH)
    model.add_adapter("oracle", config=made)
    model.set_active_adapters("oracle")
    model.eval()
    for layer in range(LAYERS):
        block = model.encoder.layer[layer]
        for place, attribute in PLACES.items():
            sub = block.attention.output if place == "attention" else block.output
            adapter = getattr(sub, attribute)["oracle"] if hasattr(sub, attribute) else sub.adapters["oracle"]
            linears = {"down": adapter.adapter_down[0], "up": adapter.adapter_up}
            for name, linear in linears.items():
                for part, parameter in linear.named_parameters():
                    torch.nn.init.normal_(parameter, std=0.5)
                    kept[f"adapter.{layer}.{place}.{name}.{part}"] = parameter.detach().clone()
    kept["input_ids"] = torch.randint(5, 30, (2, 7))
    kept["attention_mask"] = torch.tensor([[1] * 7, [1] * 4 + [0] * 3])
    with torch.no_grad():
        found = model(kept["input_ids"], attention_mask=kept["attention_mask"], output_hidden_states=True)
    kept |= {f"states.{number}": states.contiguous() for number, states in enumerate(found.hidden_states)}
    save_file(kept, Path(__file__).with_name("adapters_bert.safetensors"))


if __name__ == "__main__":
    main()
