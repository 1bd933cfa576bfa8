"""Columns of real corpora: indices, comments, CoNLL-U, names that are given, tables that are no CoNLL file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fusionkit.errors import FusionkitError, UsageError
from fusionkit.sources import Source, column_names, first_example, guess_columns, open_source, prepared

XSID = """\
# text = set an alarm
# intent = alarm/set_alarm
1\tset\talarm/set_alarm\tO
2\tan\talarm/set_alarm\tO
3\talarm\talarm/set_alarm\tB-reference

# text = it rains
# intent = weather/find
1\tit\tweather/find\tO
2\trains\tweather/find\tB-weather
"""
CONLLU = """\
# newdoc id = d1
# sent_id = s1
# text = vámonos al mar
1-2\tvámonos\t_\t_\t_\t_\t_\t_\t_\t_
1\tvamos\tir\tVERB\t_\t_\t0\troot\t_\t_
2\tnos\tnosotros\tPRON\t_\t_\t1\tobj\t_\t_
3-4\tal\t_\t_\t_\t_\t_\t_\t_\t_
3\ta\ta\tADP\t_\t_\t5\tcase\t_\t_
4\tel\tel\tDET\t_\t_\t5\tdet\t_\t_
5\tmar\tmar\tNOUN\t_\t_\t1\tobl\t_\t_
5.1\tvamos\tir\tVERB\t_\t_\t_\t_\t1:conj\t_

# sent_id = s2
1\tsí\tsí\tINTJ\t_\t_\t0\troot\t_\t_
"""


def opened(folder: Path, content: str, suffix: str = ".conll", **given: Any) -> Source:
    path = folder / f"train{suffix}"
    path.write_text(content, encoding="utf-8")
    return open_source(str(path), **given)


def columns_of(source: Source) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = source.splits["train"].head().to_pydict()
    return found


def test_an_index_is_no_word_and_comments_are_columns_of_the_example(tmp_path: Path) -> None:
    source = opened(tmp_path, XSID)
    assert columns_of(source) == {
        "text": ["set an alarm", "it rains"],
        "intent": ["alarm/set_alarm", "weather/find"],
        "tokens": [["set", "an", "alarm"], ["it", "rains"]],
        "column3": [["alarm/set_alarm"] * 3, ["weather/find"] * 2],
        "tags": [["O", "O", "B-reference"], ["O", "B-weather"]],
    }
    roles = guess_columns(source)
    assert (roles.tokens, roles.tags[0], "intent" in roles.labels) == ("tokens", "tags", True)
    assert first_example(source, roles).startswith("tokens = set an alarm · tags = O O B-reference")


def test_named_columns_take_their_names_and_what_a_comment_repeats_is_one_column(tmp_path: Path) -> None:
    source = opened(tmp_path, XSID, columns=column_names("index,word,intent,slot"))
    assert columns_of(source)["intent"] == ["alarm/set_alarm", "weather/find"]
    assert source.notes == ["train.conll: intent of the words is left out: the comments say the same"]
    roles = guess_columns(source)
    assert (roles.tokens, roles.tags, roles.labels[0]) == ("word", ("slot",), "intent")
    # Where they differ, the column that the user named counts.
    differing = XSID.replace("# intent = weather/find", "# intent = ?")
    other = opened(tmp_path, differing, columns=("index", "w", "intent", "_"))
    assert columns_of(other)["intent"] == [["alarm/set_alarm"] * 3, ["weather/find"] * 2]


def test_of_conllu_the_syntactic_words_count_and_upos_is_the_tag(tmp_path: Path) -> None:
    source = opened(tmp_path, CONLLU, ".conllu")
    found = columns_of(source)
    assert found["tokens"] == [["vamos", "nos", "a", "el", "mar"], ["sí"]]
    assert found["upos"] == [["VERB", "PRON", "ADP", "DET", "NOUN"], ["INTJ"]]
    assert (found["sent_id"], found["newdoc id"], found["text"][1]) == (["s1", "s2"], ["d1", None], None)
    assert guess_columns(source).tags[0] == "upos"
    assert source.notes == ["train.conllu: left out: 2 multi-word tokens and 1 empty node (their words stay)"]


def test_a_global_columns_comment_names_the_columns(tmp_path: Path) -> None:
    content = "# global.columns = ID FORM SENSE\n1\tbank\tshore\n2\tit\t_\n"
    assert columns_of(opened(tmp_path, content)) == {"tokens": [["bank", "it"]], "sense": [["shore", "_"]]}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("#\tO\n#NFL\tB-team\n\nyes\tO\n", [["#", "#NFL"], ["yes"]]),
        ("#NFL\tO\nrocks\tO\n\n#\tO\n", [["#NFL", "rocks"], ["#"]]),
        ("# O\nNFL B-team\n", [["#", "NFL"]]),  # a field a column: a word, though a blank follows
        ("# id = 1\n# O\nNFL B-team\n", [["#", "NFL"]]),
        ("# intent = x\nEU NNP I-NP I-ORG\n", [["EU"]]),  # a comment, though it has as many fields as there are columns
        ("# sent_id = 1\n1 EU NNP B-ORG\n2 rejects VBZ O\n", [["EU", "rejects"]]),
        ("a\tO\n# b\tO\n", [["a", "# b"]]),  # within a sentence nothing is a comment
    ],
)
def test_a_word_may_begin_with_a_number_sign(tmp_path: Path, content: str, words: list[list[str]]) -> None:
    assert columns_of(opened(tmp_path, content))["tokens"] == words


def test_the_ids_of_multiconer_are_no_words(tmp_path: Path) -> None:
    """By blanks such a comment has as many fields as there are columns."""
    words = "in _ _ O\nParis _ _ B-LOC\n\n"
    source = opened(tmp_path, f"# id 5f3a\tdomain=en\n{words}# id 6b\tdomain=en\n{words}")
    found = columns_of(source)
    assert (found["tokens"], found["id"], found["domain"]) == ([["in", "Paris"]] * 2, ["5f3a", "6b"], ["en", "en"])
    assert guess_columns(source).labels == ()  # of one domain there is nothing to learn


def test_a_word_may_be_a_number_that_is_too_long_to_count(tmp_path: Path) -> None:
    number = "9" * 5000  # more digits than Python turns into a number
    assert columns_of(opened(tmp_path, f"{number}\tNUM\tO\nrain\tNOUN\tO\n"))["tokens"] == [[number, "rain"]]


def test_behind_an_index_any_line_with_a_number_sign_is_a_comment(tmp_path: Path) -> None:
    found = columns_of(opened(tmp_path, "#\thttp://x.y [2009]\n1\tHaus\tO\tO\n\n# a: b\n#license\n1\tda\tO\tO\n"))
    assert found["tokens"] == [["Haus"], ["da"]]


@pytest.mark.parametrize("suffix", [".conllu", ".conll", ".tsv", ".bio"])
def test_sentences_are_recognised_under_every_suffix(tmp_path: Path, suffix: str) -> None:
    source = opened(tmp_path, "U.N.\tB-ORG\n.\tO\n\nOslo\tB-LOC\n.\tO\n", suffix)  # the last line stands twice
    assert columns_of(source)["tokens"] == [["U.N.", "."], ["Oslo", "."]]


def test_a_table_with_empty_lines_stays_a_table(tmp_path: Path) -> None:
    table = columns_of(opened(tmp_path, "sentence\tlabel\nit is good\tpos\n\nit is bad\tneg\n", ".tsv"))
    assert table == {"sentence": ["it is good", "it is bad"], "label": ["pos", "neg"]}
    as_words = opened(tmp_path, "the\tDET\n\na\tDET\n", ".tsv", columns=("word", "pos"))
    assert columns_of(as_words)["word"] == [["the"], ["a"]]


@pytest.mark.parametrize(
    ("content", "suffix", "names", "named"),
    [
        (XSID, ".conll", "index,word,slot", "--columns names 3 columns"),
        (XSID, ".conll", "word,number,intent,slot", "column 'word' of train holds numbers only"),
        ("1\tO\n2\tO\n\n1\tB-x\n", ".txt", None, "column 'tokens' of train holds numbers only"),
        ("a,b\nc,d\n", ".csv", "word,tag", "--columns names the columns of a CoNLL file"),
        ("a b\n", ".txt", "word,word", "--columns names each column once"),
        ("a b\n", ".txt", "index,_", "--columns names each column once"),
        ("1\ta\tO\nx\tb\tO\n", ".txt", "index,word,tag", "line 2 has no index"),
        ("a b c d e\n", ".txt", None, "remedy:   name the columns, e.g. --columns"),
        ("a\tO\n\n#b\n", ".txt", None, "a comment begins with '# '"),
    ],
)
def test_columns_that_do_not_fit_are_one_error(
    tmp_path: Path, content: str, suffix: str, names: str | None, named: str
) -> None:
    with pytest.raises(FusionkitError) as caught:
        guess_columns(opened(tmp_path, content, suffix, columns=column_names(names)))
    assert named in str(caught.value)


@pytest.mark.parametrize(("suffix", "said"), [(".txt", True), (".conll", False)])
def test_a_txt_of_one_text_a_line_is_told_how_such_texts_are_read(tmp_path: Path, suffix: str, said: bool) -> None:
    content = "the film was better than the book\nnot at all\n"
    with pytest.raises(FusionkitError, match="line 1 is not a CoNLL line") as caught:
        opened(tmp_path, content, suffix)
    remedy = str(caught.value.remedy)
    assert ("texts, one a line, are read with --task mlm only" in remedy, '{"text": …}' in remedy) == (said, said)
    if said:
        texts = content.splitlines()
        assert columns_of(opened(tmp_path, content, suffix, lines=True)) == {"text": texts}
        as_objects = "".join(f'{{"text": "{text}"}}\n' for text in texts)
        assert columns_of(opened(tmp_path, as_objects, ".jsonl")) == {"text": texts}


def test_comments_of_many_keys_do_not_become_as_many_columns(tmp_path: Path) -> None:
    source = opened(tmp_path, "".join(f"# k{i} = v\n" for i in range(100)) + "a O\n")
    assert len(source.splits["train"].column_names) == 64 + 2
    assert source.notes == ["train.conll: left out: comments of 36 keys beyond the first 64"]


@pytest.mark.parametrize("content", ["text,label\nc,x\n ,y\n,z\n", '{"text": "c"}\n{"text": " "}\n{"text": ""}\n'])
def test_texts_of_blanks_are_counted(tmp_path: Path, content: str) -> None:
    source = opened(tmp_path, content, ".csv" if content[0] == "t" else ".jsonl")
    assert prepared(source, guess_columns(source, text="text"))[1] == ["train: 2 of 3 'text' are empty or blank"]


def test_examples_without_words_are_counted(tmp_path: Path) -> None:
    source = opened(tmp_path, '{"tokens": ["a"]}\n{"tokens": []}\n', ".jsonl")
    assert prepared(source, guess_columns(source))[1] == ["train: 1 of 2 'tokens' have no word"]


@pytest.mark.parametrize(
    ("content", "line", "encoding", "shown"),
    [
        ("text\nok\ncafé\n".encode("latin1"), 3, "iso-8859-1", "café"),
        ("text\n“so”\n".encode("cp1252"), 2, "cp1252", "“so”"),
        ("text\nab\n".encode("utf-16"), 1, "utf-16", "text"),
    ],
)
def test_a_file_that_is_no_utf8_is_named_with_its_line_and_the_encoding_to_try(
    tmp_path: Path, content: bytes, line: int, encoding: str, shown: str
) -> None:
    path = tmp_path / "train.csv"
    path.write_bytes(content)
    with pytest.raises(FusionkitError) as caught:
        open_source(str(path))
    message = str(caught.value)
    assert f"line {line} is not UTF-8" in message
    assert f"read as {encoding}: {shown!r}" in message
    assert f"iconv -f {encoding}" in message


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".txt"])
def test_a_limit_reads_no_more_of_a_file_than_it_needs(tmp_path: Path, suffix: str) -> None:
    contents = {".csv": ("text,label\n", "a,b\n"), ".jsonl": ("", '{"text": "a"}\n'), ".txt": ("", "a O\n\n")}
    first, line = contents[suffix]
    path = tmp_path / f"train{suffix}"
    path.write_bytes((first + line * 100_000).encode() + b"\xff\n")  # whoever reads to the end fails
    source = open_source(str(path), limit=3)
    assert source.name == "train (first 3)"
    assert (source.splits["train"].num_rows, source.notes) == (3, ["limit: the first 3 examples of each split"])
    with pytest.raises(FusionkitError, match="not UTF-8"):
        open_source(str(path))


def test_columns_of_a_hub_folder_cannot_be_named(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.csv").write_text("text\na\n")
    with pytest.raises(UsageError, match="--columns names the columns of a CoNLL file"):
        open_source(str(tmp_path), columns=("word", "tag"))
