"""Prompt tuning: ``[p_1; …; p_P; e_1; …; e_T]`` instead of ``[e_1; …; e_T]`` at the encoder's input.

Symbols: ``e_t`` the word embedding of sub-token t, the first one (``[CLS]``) included; ``p_i`` trained vectors in front
of all of them, of the same width d, that start as the embeddings of random sub-tokens. They get positions as words do,
and token type 0. The output is cut to the T positions of the input.
Source: Lester, Al-Rfou and Constant (2021).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fusionkit.errors import UsageError
from fusionkit.methods.attached import Attached, attached_parts
from fusionkit.methods.structure import Structure


class PromptVectors(nn.Module):
    """``p``. Parameters: P d."""

    def __init__(self, vectors: Tensor) -> None:
        super().__init__()
        self.vectors = nn.Parameter(vectors.detach().clone())  # [P, d]


class Prompt:
    """Trains: P vectors in front of the embeddings. Parameters: P d."""

    def __init__(self, *, P: int) -> None:  # noqa: N803
        if P < 1:
            raise UsageError(
                "there is no such prompt",
                expected="prompt:P with P at least 1",
                received=f"prompt:{P}",
                remedy="choose a length, for example prompt:20",
            )
        self.positions = P

    def lowest_changed(self, depth: int) -> int:
        """The first layer: it attends to the vectors, and the embeddings of the text are what they were."""
        return 1

    def attach(self, model: Any, structure: Structure) -> Attached:
        """Inputs become embeddings before the model's forward pass, and outputs are cut after it."""
        embedding = model.get_input_embeddings()
        drawn = torch.randint(len(embedding.weight), (self.positions,)).to(embedding.weight.device)
        parts = PromptVectors(embedding.weight[drawn])

        def put_in_front(module: nn.Module, inputs: Any, named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            words = module.get_input_embeddings()(named["input_ids"])  # type: ignore[operator]  # [batch, T, d]
            if structure.most_positions is not None and words.shape[1] + self.positions > structure.most_positions:
                raise UsageError(
                    f"a text of {words.shape[1]} sub-tokens is too long for a prompt in front of it",
                    expected=f"at most {structure.most_positions - self.positions} sub-tokens, of the encoder's "
                    f"{structure.most_positions}",
                    received=f"prompt:{self.positions}",
                    remedy="encode with a smaller --max-length, or choose a shorter prompt",
                )
            prompt = parts.vectors.to(words.dtype).expand(len(words), -1, -1)  # [batch, P, d]
            given = {name: value for name, value in named.items() if name != "input_ids"}
            given["inputs_embeds"] = torch.cat([prompt, words], 1)  # [batch, P + T, d]
            for name, value in (("attention_mask", 1), ("token_type_ids", 0)):
                if (found := named.get(name)) is not None:
                    front = found.new_full((len(words), self.positions), value)  # [batch, P]
                    given[name] = torch.cat([front, found], 1)  # [batch, P + T]
            return inputs, given

        def cut(module: nn.Module, inputs: Any, output: Any) -> Any:
            output.last_hidden_state = output.last_hidden_state[:, self.positions :]  # [batch, T, d]
            if output.hidden_states is not None:
                output.hidden_states = tuple(states[:, self.positions :] for states in output.hidden_states)
            return output

        hooks = [
            model.register_forward_pre_hook(put_in_front, with_kwargs=True),
            model.register_forward_hook(cut),
        ]
        return attached_parts(model, structure, parts, 0, {}, hooks=hooks, positions_added=self.positions)
