"""Options as entries: what is made of one, and that the documents say the same."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import click
import pytest

from fusionkit.cli.options.flags import flag
from fusionkit.errors import UsageError
from fusionkit.options.entry import NONE, OptionInfo, about, check_options, documented, option, options_of
from fusionkit.options.tables import ENCODE, FIT
from fusionkit.options.yaml_file import YamlNode, read_options
from fusionkit.options.yaml_texts import Places

ROOT = Path(__file__).parent.parent.parent


@documented
@dataclasses.dataclass(frozen=True)
class Oven:
    """An oven."""

    name: str = dataclasses.field(metadata=about("What it is called."))
    heat: float = option(180.0, "Degrees.", gt=0, le=300)
    racks: int | None = option(None, "How many.", ge=1, unit="racks", flag="levels")
    mode: str = option("air", "What moves.", choices=("air", "grill"))
    code: str | None = option(None, "Of the maker.", pattern="[A-Z]{2}", example="two letters")
    bought: int = 2020

    def __post_init__(self) -> None:
        check_options(self)


def test_an_entry_takes_what_the_field_says() -> None:
    entries = options_of(Oven)
    assert list(entries) == ["name", "heat", "racks", "mode", "code"]
    told = [(entry.kind, entry.default, entry.optional) for entry in entries.values()]
    assert told == [
        (str, None, False),
        (float, 180.0, False),
        (int, None, True),
        (str, "air", False),
        (str, None, True),
    ]
    racks = entries["racks"]
    assert (racks.name, racks.flag, racks.parameter) == ("racks", "levels", "levels")
    assert "racks: How many." in str(Oven.__doc__)


def test_numbers_are_kept_as_pythons_own() -> None:
    oven = Oven("a", heat=200, racks=3, code="AB")
    assert (type(oven.heat), oven.racks, oven.code) == (float, 3, "AB")


@pytest.mark.parametrize(
    ("given", "what", "expected"),
    [
        ({"heat": 0}, "heat is out of range", "above 0, up to 300"),
        ({"heat": float("inf")}, "heat is out of range", "above 0, up to 300"),
        ({"heat": "180"}, "heat has a wrong value", "a number"),
        ({"heat": None}, "heat has a wrong value", "a number"),
        ({"racks": 0}, "levels is out of range", "racks, 1 or more"),
        ({"racks": 1.0}, "levels has a wrong value", "a whole number"),
        ({"mode": "gril"}, "unknown mode 'gril'", "one of air, grill"),
        ({"code": "abc"}, "code has a wrong value", "two letters"),
    ],
)
def test_what_an_option_cannot_have_is_refused(given: dict[str, Any], what: str, expected: str) -> None:
    with pytest.raises(UsageError) as caught:
        Oven("a", **given)
    assert (caught.value.what, caught.value.expected) == (what, expected)
    assert caught.value.remedy


def test_a_flag_and_a_key_of_a_file_read_the_same(tmp_path: Path) -> None:
    known = {entry.flag: dataclasses.replace(entry, lists=NONE) for entry in options_of(Oven).values()}
    made: dict[str, Any] = {}

    @click.command()
    def bake(**given: Any) -> None:
        made.update(given)

    for entry in known.values():
        bake = flag(entry)(bake)
    texts = {"name": "b", "heat": "2e2", "levels": "2", "mode": "grill", "code": "XY"}
    bake.main([word for name, text in texts.items() for word in (f"--{name}", text)], standalone_mode=False)
    assert made == {"name": "b", "heat": 200.0, "levels": 2, "mode": "grill", "code": "XY"}
    places: Places = {("oven", name): f"line {line}" for line, name in enumerate(texts, 1)}
    written = YamlNode(tmp_path / "oven.yaml", {"oven": texts}, places)
    assert read_options(written, ("oven",), texts, known) == made
    with pytest.raises(UsageError, match=r"oven.yaml, line 3: levels is out of range"):
        read_options(written, ("oven",), {**texts, "levels": "0"}, known)


def test_every_option_says_what_it_is() -> None:
    assert [entry.flag for entry in (*FIT.values(), *ENCODE.values()) if len(entry.help) < 8] == []
    assert all(isinstance(entry, OptionInfo) for entry in FIT.values())


def test_choices_in_the_documents_are_those_of_the_entries() -> None:
    text = "".join((ROOT / "docs" / page).read_text(encoding="utf-8") for page in ("training.md", "cli.md"))
    spelled = re.findall(r"`--([a-z-]+) ([a-z0-9-]+(?:\\?\|[a-z0-9-]+)+)", text)
    known = {**ENCODE, **FIT}
    wrong = [
        (name, listed)
        for name, listed in spelled
        if name in known and known[name].choices and not {*re.split(r"\\?\|", listed)} <= {*known[name].choices}
    ]
    assert wrong == []
    assert len(spelled) > 1
