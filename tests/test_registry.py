"""Names, import paths and what stands behind them; and the errors of those that lead nowhere."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fusionkit.errors import UsageError
from fusionkit.fit.model.own_code import refuse_redefined
from fusionkit.fusions import build_fusion, fusion_kind, fusion_layers, fusion_name
from fusionkit.heads import build_head, head_entry, reads_sequences
from fusionkit.registry import Registry, changed
from fusionkit.report.display_names import family, in_order
from fusionkit.specs import RunSpec
from fusionkit.study.schema import fusion_pattern, study_schema
from fusionkit.tasks import TASKS, tasks_of
from fusionkit.tasks.head_check import check_head
from fusionkit.tasks.joint import fitting_heads

MIX = """
from typing import Literal
import torch
from torch import nn

class Deep(nn.Module):
    def __init__(self, layers, hidden, *, n: int, halve: bool = False, norm: Literal["none", "l2"] = "none"):
        super().__init__()
        self.width, self.n, self.halve, self.norm = hidden, n, halve, norm

    @staticmethod
    def reads(last, chosen=None):
        return chosen or (last,)

    def forward(self, states, offsets=None):
        return states[..., -1, :]

class NoForward(nn.Module):
    pass

class Rated(Deep):
    def __init__(self, layers, hidden, *, rate: bytes = b''):
        super().__init__(layers, hidden, n=1)

def head(width, classes, dropout):
    return nn.Linear(width, classes)

class Whole:
    tasks, sequences = ("classification",), 1

class Words:
    tasks = ("tagging",)

number = 7
"""


@pytest.fixture(scope="module", autouse=True)
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A working folder with modules, in the way that a user's has them."""
    folder = tmp_path_factory.mktemp("registry")
    (folder / "reglab").mkdir()
    (folder / "reglab" / "mix.py").write_text(MIX)
    (folder / "reglab" / "broken.py").write_text("import nowhere_at_all\n")
    (folder / "reglab" / "wrong.py").write_text("1 / 0\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield folder


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("reglab.mix:Deep:8", "reglab.mix:Deep:8"),
        ("reglab.mix:Deep,8", "reglab.mix:Deep:8"),
        ("reglab.mix:Deep:n=08,halve=no", "reglab.mix:Deep:8"),
        ("reglab.mix:Deep,8,norm=l2,halve=yes", "reglab.mix:Deep:8,halve=yes,norm=l2"),
    ],
)
def test_an_import_path_has_options_and_one_spelling(text: str, name: str) -> None:
    assert fusion_name(text) == fusion_name(name) == name
    assert fusion_kind(text) == "reglab.mix:Deep"
    fusion: Any = build_fusion(text, 1, 4)
    assert fusion.n == 8
    assert fusion_layers(text, (0, 3, 6), 7) == (6,)


@pytest.mark.parametrize(
    ("text", "what", "received"),
    [
        ("reglab.mix:Deep", "fusion 'reglab.mix:Deep' is not complete", ""),
        ("reglab.mix:Deep:8,norm=l3", "unknown norm of fusion 'reglab.mix:Deep' 'l3'", ""),
        ("reglab.mix:Dep:8", "reglab.mix has no 'Dep'", "Dep"),
        ("reglab.mx:Deep", "there is no module 'reglab.mx'", "No module named 'reglab.mx'"),
        ("nolab.mix:Deep", "there is no module 'nolab'", "No module named 'nolab'"),
        ("reglab.broken:Deep", "reglab.broken raises an error while", "No module named 'nowhere_at_all'"),
        ("reglab.wrong:Deep", "reglab.wrong raises an error while", "ZeroDivisionError: division by zero"),
        ("reglab.mix:NoForward", "'reglab.mix:NoForward' is no fusion: it has no forward", "NoForward"),
        ("reglab.mix:number", "it is no torch.nn.Module", "7"),
        ("reglab.mix:Rated", "its option rate is neither bool, int, float, str nor Literal of texts", "Rated"),
        ("attenton:scale", "there is no module 'attenton'", ""),
    ],
)
def test_what_leads_nowhere_is_refused_with_what_is_there(text: str, what: str, received: str) -> None:
    with pytest.raises(UsageError) as caught:
        fusion_name(text)
    assert what in caught.value.what
    assert received in (caught.value.received or "")
    assert caught.value.expected
    assert caught.value.remedy
    assert caught.value.exit_code == 2


def test_a_misspelt_name_of_the_table_is_still_told_of() -> None:
    with pytest.raises(UsageError, match="did you mean 'attention'"):
        fusion_name("attenton:scale")


def test_a_name_of_the_table_wins_over_a_module_of_that_name(lab: Path) -> None:
    (lab / "layer.py").write_text("raise RuntimeError\n")
    assert fusion_kind("layer:k") == "layer"
    with pytest.raises(UsageError, match="k of fusion 'layer' is no integer"):
        fusion_name("layer:k")


def test_the_source_is_the_file_s_hash_and_a_change_is_told_of(lab: Path) -> None:
    registry = Registry("fusion", "fusionkit.fusions", {"last": "fusionkit.fusions.last:Last"})
    found = registry.source("reglab.mix:Deep")
    sha256 = hashlib.sha256((lab / "reglab" / "mix.py").read_bytes()).hexdigest()
    assert found == {"name": "reglab.mix:Deep", "path": "reglab.mix:Deep", "module": "reglab.mix", "sha256": sha256}
    assert registry.source("last") is None
    assert changed(found, found) is None
    told = changed({**found, "sha256": "0" * 64}, found)
    assert told == f"reglab.mix:Deep has changed since: reglab.mix was sha256 000000000000…, it is {sha256[:12]}…"


def test_a_class_that_was_defined_anew_is_found_out(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry("fusion", "fusionkit.fusions", {})
    assert not registry.is_redefined("reglab.mix:Deep")
    spec = RunSpec(store="s", task="tagging", label="tags", fusion="reglab.mix:Deep:8", head="tagger")
    refuse_redefined(spec)
    monkeypatch.setattr(sys.modules["reglab.mix"], "Deep", type("Deep", (), {}))
    assert registry.is_redefined("reglab.mix:Deep")
    with pytest.raises(UsageError, match=r"fusion reglab\.mix:Deep was defined anew since fusionkit first used it"):
        refuse_redefined(spec)


def test_a_head_says_what_it_fits() -> None:
    check_head(TASKS["tagging"], "reglab.mix:Words")
    assert fitting_heads(tasks_of("joint"), "classifier+reglab.mix:Words") == "classifier+reglab.mix:Words"
    several = tasks_of("topic=classification,slots=tagging,mood=regression")
    assert fitting_heads(several, "slots=reglab.mix:Words") == "classifier+reglab.mix:Words+regressor"
    assert reads_sequences("reglab.mix:Whole")
    for task, head, what in (
        ("classification", "reglab.mix:Words", "is no head for classification"),
        ("joint", "reglab.mix:Whole+tagger", "is no head for intent"),
        ("joint", "intent=reglab.mix:Words", "is no head for intent"),
        ("joint", "reglab.mix:Words", "unknown head for joint"),
        ("joint", "slots=crf,slots=tagger", "--head names 'slots' twice"),
        ("joint", "reglab.mix:Words:8+tagger", "takes no options"),
        ("tagging", "reglab.mix:head", "is no head"),
        ("tagging", "reglab.mix:Words:8", "takes no options"),
        ("tagging", "taggr", "unknown head for tagging 'taggr'"),
    ):
        with pytest.raises(UsageError, match=what):
            fitting_heads(tasks_of(task), head)
    with pytest.raises(UsageError, match="did you mean 'tagger'"):
        build_head("taggr", 4, 2, 0.0)
    assert head_entry("reglab.mix:Words").sequences is None


def test_another_number_of_heads_than_tasks_is_refused_without_listing_all_products() -> None:
    with pytest.raises(UsageError, match="unknown head for joint 'crf'") as caught:
        fitting_heads(tasks_of("joint"), "crf")
    assert caught.value.expected == "2 heads, like classifier+tagger"


def test_the_schema_takes_import_paths() -> None:
    import re

    taken = [text for text in ("reglab.mix:Deep:8", "mix:Deep", "layer:x", "liner") if re.match(fusion_pattern(), text)]
    assert taken == ["reglab.mix:Deep:8", "mix:Deep"]
    single, *several = study_schema()["properties"]["fit"]["properties"]["head"]["anyOf"][0]["anyOf"]
    patterns = [each["pattern"] for each in (*single["anyOf"], *several) if "pattern" in each]
    wanted = ["a.b:C", "classifier+a.b:C", "a.b:C+tagger", "topic=a.b:C,slots=crf", "crf+crf+a.b:C"]
    tried = [*wanted, "cfr", "topic=", "crf+", "topic=classifier+crf"]
    assert [text for text in tried if any(re.match(pattern, text) for pattern in patterns)] == wanted


def test_a_report_tells_families_apart_without_importing_them() -> None:
    assert family("gone.mix:Deep:8,halve=yes freeze head") == "gone.mix:Deep"
    assert in_order(["gone.mix:B:8", "gone.mix:A", "linear", "gone.mix:B:4"])[0] == "linear"
