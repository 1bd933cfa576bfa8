"""While an encoder is loaded the libraries below say nothing; before and after they speak as they did."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers
from safetensors.torch import load_file, save_file

from fusionkit.encoder import load_encoder
from fusionkit.errors import EncoderError


@pytest.fixture
def noisy(tiny: Callable[[str], Any], tmp_path: Path) -> str:
    """A checkpoint that makes the library log a report: it has no pooler."""
    folder = shutil.copytree(tiny("bert").folder, tmp_path / "noisy")
    kept = {k: v for k, v in load_file(folder / "model.safetensors").items() if "pooler" not in k}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)


def test_transformers_reports_and_bars_stay_out(
    noisy: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    for load in (transformers.AutoModel.from_pretrained, load_encoder, transformers.AutoModel.from_pretrained):
        caplog.clear()
        capfd.readouterr()
        load(noisy)
        heard = capfd.readouterr()
        if load is load_encoder:
            assert (heard.out, heard.err, caplog.records) == ("", "", [])
        else:
            assert "Loading weights" in heard.err
            assert "pooler" in caplog.text


def test_warnings_of_the_hub_stay_out(
    noisy: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its client warns about tokens, rates and links as it goes; here, as a configuration is read."""
    hub = logging.getLogger("huggingface_hub.file_download")
    read = transformers.AutoConfig.from_pretrained

    def read_with_warning(*of: Any, **how: Any) -> Any:
        hub.warning("you are not authenticated")
        return read(*of, **how)

    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", read_with_warning)
    load_encoder(noisy)
    assert caplog.records == []
    hub.warning("you are not authenticated")
    assert len(caplog.records) == 1


def test_a_refused_encoder_leaves_the_logging_as_it_was(tmp_path: Path) -> None:
    library: Any = transformers.utils.logging
    before = library.get_verbosity(), library.is_progress_bar_enabled()
    assert before[1]
    with pytest.raises(EncoderError, match="cannot load the encoder"):
        load_encoder(str(tmp_path))
    assert (library.get_verbosity(), library.is_progress_bar_enabled()) == before
