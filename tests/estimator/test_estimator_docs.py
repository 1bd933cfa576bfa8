"""The estimators' page of the docs, run."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusionkit import FusionClassifier
from fusionkit.fit.train import decisions
from fusionkit.store import Store

PAGE = (Path(__file__).parent.parent.parent / "docs" / "python.md").read_text(encoding="utf-8")


@pytest.mark.filterwarnings("ignore:The least populated class:UserWarning")  # 40 sentences of ten intents
def test_the_example_runs_as_it_stands(
    store_of: Callable[[str], Store], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my.store").symlink_to(store_of("mean").path)  # type: ignore[arg-type]
    monkeypatch.chdir(tmp_path)
    example = next(block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "cross_val_score" in block)
    names: dict[str, Any] = {}
    exec(example, names)
    assert len(names["scores"]) == 3
    assert names["search"].best_params_["fusion"] in ("last", "linear")


def test_every_parameter_stands_on_the_page() -> None:
    assert [name for name in FusionClassifier().get_params() if f"`{name}" not in PAGE] == []


def test_blocks_of_rows_change_no_probability(toy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ragged, labels, _ = toy
    found = FusionClassifier(epochs=2, pool="mean").fit(ragged, labels)
    whole = found.predict_proba(ragged)
    for rows in (1, 7):
        monkeypatch.setattr(decisions, "BLOCK_ROWS", rows)
        np.testing.assert_allclose(found.predict_proba(ragged), whole, rtol=1e-5)
