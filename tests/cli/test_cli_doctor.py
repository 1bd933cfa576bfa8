"""What a bug report needs, told whatever is broken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusionkit.cli import doctor

Command = Callable[..., Any]


def test_the_doctor_tells_every_fact_and_never_fails(
    fusionkit: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = fusionkit("doctor", "--json").json
    assert list(told) == list(doctor.FACTS)
    assert not [fact for fact in told.values() if fact.startswith("unknown: ")]
    assert told["encoder"].startswith("minilm in ")
    assert "torch 2." in told["packages"]
    assert "missing" not in told["packages"]

    def broken() -> str:
        raise RuntimeError("no driver\nof this kind")

    (tmp_path / "file").touch()
    monkeypatch.setenv("FUSIONKIT_CACHE_DIR", str(tmp_path / "file"))
    monkeypatch.setenv("FUSIONKIT_CACHE", "much")
    monkeypatch.setitem(doctor.FACTS, "devices", broken)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(doctor, "_version", lambda name: None)
    done = fusionkit("doctor")
    assert (done.code, done.err) == (0, "")
    found = {name: next(line for line in done.out.splitlines() if line.startswith(name)) for name in doctor.FACTS}
    assert "unknown: RuntimeError: no driver of this kind" in found["devices"]
    assert "unknown: UsageError: FUSIONKIT_CACHE is no size" in found["chunk cache"]
    assert "pip install 'fusionkit[demo]'" in found["encoder"]
    assert "torch is missing" in found["packages"]
    assert "s3: lacks s3fs (pip install 'fusionkit[s3]')" in found["extras"]
