"""The state of a run in training, as one file, from which the next process goes on after one was killed.

    RUNS/{digest}/state.safetensors     the numbers as tensors, all else as JSON in the file's metadata

The file is written aside, synced and renamed, so that at any moment it is absent, old or complete. It holds only what
is trained: the encoder's other weights are those of its identity.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fusionkit.errors import StoreError, first_line
from fusionkit.io.files import write_durably

FORMAT = 1


@dataclass(frozen=True)
class SavedState:
    """Tensors by group and name, and plain values.

    Attributes:
        groups: ``model``, ``method`` and ``moments``, and for the best epoch ``best-model``, ``best-delta`` and, where
            it has decisions, ``best-decided``; each has tensors by name.
    """

    groups: Mapping[str, Mapping[str, Tensor]]
    values: Mapping[str, Any]


def write_state(path: Path, state: SavedState) -> None:
    """Write a state; errors are those of :func:`fusionkit.io.files.write_durably`."""
    tensors, places = dict[str, Tensor](), set[int]()
    for group, found in state.groups.items():
        for name, tensor in found.items():
            held = tensor.detach().cpu().contiguous()
            # A file of weights cannot hold one tensor under two names: tied weights are copied.
            tensors[f"{group}/{name}"] = held.clone() if held.data_ptr() in places else held
            places.add(held.data_ptr())
    values = json.dumps({"format": FORMAT, "torch": torch.__version__, **state.values})
    # safetensors' own writer of files would leave a temporary file of another name where it is killed.
    write_durably(path, save(tensors, {"state": values}))


def read_state(path: Path) -> SavedState | None:
    """The state in a file; None where there is no file.

    Raises:
        StoreError: the file is damaged, or of another release.
    """
    if not path.exists():
        return None
    groups: dict[str, dict[str, Tensor]] = {}
    try:
        with safe_open(path, framework="pt") as file:
            values = json.loads((file.metadata() or {})["state"])
            for name in file.keys():  # noqa: SIM118 (no mapping)
                group, _, own = name.partition("/")
                groups.setdefault(group, {})[own] = file.get_tensor(name)
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise unusable(path, "the state of a run in training", first_line(error)) from error
    for name, known in (("format", FORMAT), ("torch", torch.__version__)):
        if values.pop(name, None) != known:
            raise unusable(path, f"a state of {name} {known}", "a state of another release")
    return SavedState(groups, values)


def unusable(path: Path, expected: str, received: str) -> StoreError:
    """The error for a state from which a run cannot go on."""
    return StoreError(
        f"{path} cannot be resumed from",
        expected=expected,
        received=received,
        remedy="remove that file: the run is then trained from its start",
    )
