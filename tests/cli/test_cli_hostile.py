"""Texts that a terminal, a spreadsheet or LaTeX would obey, in the names and labels of a user's data."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from fusionkit.cli import console
from fusionkit.cli.main import main
from fusionkit.printable import CONTROL, one_line, printable, spreadsheet_safe
from fusionkit.runs.tables.paper_tables import csv_text, latex, markdown

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egpj.exe\r\udc80"
SUMMARY = {
    "metric": "f1", "runs": 1, "failed": 0, "mean": 0.5, "std": 0.1, "low": 0.4, "high": 0.6, "validation": 0.5,
    "parameters": 8.0, "seconds_alone": 1.0,
}  # fmt: skip


def test_control_characters_become_escapes_and_other_texts_stay() -> None:
    assert printable("größer \U0001f469\u200d\U0001f52c 中文\n") == "größer \U0001f469\u200d\U0001f52c 中文\n"
    assert printable("\x1b[31m\x9b\u202e\udc80") == r"\x1b[31m\x9b\u202e\udc80"
    assert one_line("a\nb" + "c" * 50, 6) == r"a\nbcc…"


@pytest.mark.parametrize("where", ["text", "cell", "header", "title"])
def test_no_text_commands_the_terminal(where: str, capsys: pytest.CaptureFixture[str]) -> None:
    given: dict[str, Any] = {"text": "-", "cell": "-", "header": "-", "title": "-"} | {where: HOSTILE}
    console.out().print(given["text"])
    console.out().print(console.table(given["title"], [(given["header"], "left")], [[given["cell"]]]))
    console.log().print(given["text"])
    console.print_json({given["text"]: given["cell"]})
    with console.ProgressBars() as bars:
        bars.step("working", 3, 0, "parts")
        bars.note(given["text"])
        bars.say(given["text"])
    said = capsys.readouterr()
    assert not CONTROL.search(said.out + said.err)
    assert "owned" in "".join((said.out + said.err).split())  # a title wraps to its table


def test_the_note_of_a_bar_on_a_terminal_commands_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = io.StringIO()
    terminal = type(console.log())(file=drawn, force_terminal=True, color_system=None, markup=False, width=200)
    monkeypatch.setattr(console, "log", lambda: terminal)
    with console.ProgressBars() as bars:
        bars.step("working", 3, 0, "parts")
        bars.note(HOSTILE)
    shown = re.sub(r"\x1b\[(\?25[lh]|[12][AK])", "", drawn.getvalue())  # Rich's own: the cursor, and a line drawn anew
    assert "owned" in shown
    assert not CONTROL.search(shown.replace("\r", ""))


def test_json_keeps_the_texts(capsys: pytest.CaptureFixture[str]) -> None:
    console.print_json({"text": HOSTILE})
    assert json.loads(capsys.readouterr().out) == {"text": HOSTILE}


@pytest.mark.parametrize("args", [["info"], ["encode", "--out", "x"], ["fit", "--nonsense"], ["results", "--format"]])
def test_a_name_in_an_error_is_escaped(
    args: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.argv", ["fusionkit", *args, HOSTILE.replace("/", "")])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert not CONTROL.search(said)
    assert "fusionkit" in said


FORMULAS = ['=HYPERLINK("http://x.y","click")', "+1+cmd|' /C calc'!A0", "@SUM(A1)", "-2+3", "\t=1+1", "\r=1"]


@pytest.mark.parametrize("text", FORMULAS)
def test_a_label_is_no_formula_of_a_spreadsheet(text: str) -> None:
    content = csv_text(pd.DataFrame([{"label": text, "score": -0.5}]))
    [row] = csv.DictReader(io.StringIO(content))
    assert row["label"].startswith("'")
    assert row["score"] == "-0.5"
    assert not CONTROL.search(content)


@pytest.mark.parametrize("text", ["-1", "+2.5e-3", "- a dash", "a=b", "", "größer"])
def test_numbers_and_plain_texts_stay_in_csv(text: str) -> None:
    assert spreadsheet_safe(text) == (f"'{text}" if text == "- a dash" else text)


def test_a_label_is_no_command_of_latex_or_markdown() -> None:
    name = "\\input{/etc/passwd} $x$ & 50% #1 a_b^c~ " + HOSTILE[:-1]  # no frame holds half a surrogate pair
    frame = pd.DataFrame([{"label": name, **SUMMARY}])
    frame.attrs |= {"chosen": [], "notes": []}
    text = latex(frame, [f"a note of {name}\n\\end{{document}}"])
    [line] = [line for line in text.splitlines() if "passwd" in line and not line.startswith("%")]
    assert "\\textbackslash{}input\\{/etc/passwd\\} \\$x\\$ \\& 50\\% \\#1 a\\_b\\textasciicircum{}c" in line
    assert text.splitlines()[0].startswith("% ")
    assert "\n\\end{document}" not in text
    assert not CONTROL.search(text + markdown(frame, [name]))
    frame["metric"] = "<b>a|b</b>"
    assert r"\<b\>a\|b\</b\>" in markdown(frame)
