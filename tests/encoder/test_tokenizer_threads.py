"""Tokenizers use all cores while a store is planned and one beside a forward pass, unless the user has chosen."""

from __future__ import annotations

import contextlib
import os

import pytest

from fusionkit.encoder.tokenizer_threads import OFF, VARIABLE, keep_tokenizers_serial, parallel_tokenizers


@pytest.mark.parametrize("chosen", [None, "true", "false"])
def test_threads_are_on_inside_alone_and_a_choice_stays(chosen: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, chosen or "")
    if chosen is None:
        monkeypatch.delenv(VARIABLE)
    keep_tokenizers_serial()
    before = os.environ[VARIABLE]
    assert before == (chosen or OFF)
    with contextlib.suppress(ZeroDivisionError), parallel_tokenizers():
        assert os.environ[VARIABLE] == (chosen or "true")
        raise ZeroDivisionError
    assert os.environ[VARIABLE] == before
