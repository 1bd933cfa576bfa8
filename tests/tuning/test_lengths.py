"""What benchmarks/lengths.py answers to arguments that lead nowhere."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from fusionkit.store import Store

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "lengths.py"


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("nowhere.store --label label", "nowhere.store is no store"),
        ("{store} --label lable", "unknown column 'lable'"),
        ("{store} --label label --method ful", "unknown method 'ful'"),
        ("{store} --label label --steps 9", "--steps takes 10 or more"),
    ],
)
def test_a_wrong_argument_is_one_error(
    words: str, what: str, store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = importlib.util.spec_from_file_location("lengths", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    lengths = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(lengths)
    monkeypatch.setattr(sys, "argv", ["lengths.py", *words.format(store=store.path).split()])
    with pytest.raises(SystemExit, match="2"):
        lengths.main()
    assert f"lengths.py: error: {what}" in capsys.readouterr().err
