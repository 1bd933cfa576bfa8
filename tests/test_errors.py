"""Errors: what they say, and the exit code they leave with."""

from __future__ import annotations

import pytest

from fusionkit import errors
from fusionkit.errors import FusionkitError, UsageError, first_line, unknown_name

EXIT_CODES = {
    "FusionkitError": 1, "UsageError": 2, "DataError": 1, "EncoderError": 1, "StoreError": 1, "IdentityError": 2,
    "CannotStartError": 2, "NothingFinishedError": 2, "StoppedError": 143, "UntrustedCodeError": 1,
}  # fmt: skip


def test_each_error_has_the_exit_code_its_kind_promises() -> None:
    found = {
        name: kind.exit_code
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, FusionkitError)
    }
    assert found == EXIT_CODES


def test_a_message_names_the_thing_the_expected_the_received_and_the_remedy() -> None:
    error = FusionkitError("the cat is out", expected="in", received="out", remedy="call it")
    assert str(error).splitlines() == ["the cat is out", "  expected: in", "  received: out", "  remedy:   call it"]


def test_a_message_leaves_out_what_is_not_known() -> None:
    assert str(FusionkitError("the cat is out", remedy="call it")) == "the cat is out\n  remedy:   call it"
    assert str(FusionkitError("the cat is out")) == "the cat is out"


def test_a_misspelt_name_gets_all_choices_and_the_nearest() -> None:
    error = unknown_name("fusion", "atention", ["last", "linear", "attention"])
    assert isinstance(error, UsageError)
    assert str(error).splitlines() == [
        "unknown fusion 'atention'",
        "  expected: one of attention, last, linear",
        "  received: atention",
        "  remedy:   did you mean 'attention'?",
    ]


@pytest.mark.parametrize(
    ("error", "line", "with_kind"),
    [
        (ValueError("one\ntwo"), "one", "ValueError: one"),
        (ValueError("\n  two \n"), "two", "ValueError: two"),
        (ValueError(), "ValueError", "ValueError"),
        (MemoryError("\n"), "MemoryError", "MemoryError"),
    ],
)
def test_an_error_in_one_line_is_never_empty(error: Exception, line: str, with_kind: str) -> None:
    assert (first_line(error), first_line(error, kind=True)) == (line, with_kind)


@pytest.mark.parametrize("name", ["zzz", ""])
def test_a_name_like_none_of_the_choices_gets_no_guess(name: str) -> None:
    error = unknown_name("kind of rows", name, ("tokens", "words"))
    assert error.remedy == "choose one of those above"
