"""The page in a real headless Chromium: what a reader sees and does, and that nothing leaves it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe

Open = Callable[..., Any]
PHONE = {"width": 390, "height": 844}


def column(page: Any, place: int) -> list[str]:
    """The first words of a column of the summary, from above."""
    cells = page.locator(f"#matrix tbody tr > :nth-child({place + 1})").all_inner_texts()
    return [str(text).split(" ")[0] for text in cells]


def violations(page: Any, part: str | None = None) -> list[tuple[str, str]]:
    """What axe-core finds, whatever its impact, with the first element that it names."""
    found = Axe().run(page, context=part).response["violations"]
    return [(one["id"], one["nodes"][0]["html"]) for one in found]


def choose(page: Any, place: int, part: str) -> None:
    """Choose the option that holds these words, in the look inside."""
    options = page.locator(f"#inside-body select >> nth={place}").locator("option").all_inner_texts()
    page.select_option(f"#inside-body select >> nth={place}", label=next(text for text in options if part in text))


def test_the_page_shows_its_tables_charts_and_foot(page: Any, made: Any) -> None:
    assert "desk-de" in page.inner_text("h1")
    assert "22 heads" in page.inner_text("#lead")
    assert "null" not in page.inner_text("#inside-body")
    assert column(page, 0) == ["last", "layer:0", "layer:3", "linear", "attention", "attention:scale=yes", "majority"]
    figures = page.locator("#charts figure")
    assert figures.count() >= 10
    drawn = page.locator("#charts figure .chart > svg, #charts figure .chart svg.marks")
    assert drawn.count() == figures.count()
    labels = [svg.get_attribute("aria-label") for svg in drawn.all()]
    assert all(label and len(label) > 40 for label in labels)
    assert f"fusionkit report {made.runs}" in page.inner_text("#provenance").replace("'", "")
    assert page.locator("td.best").count() >= 3


def test_a_header_sorts_by_mouse_and_by_keyboard(open_page: Open) -> None:
    page = open_page(wait=False)
    button = page.locator("#matrix thead th:nth-child(2) button")
    button.click()
    header = page.locator("#matrix thead th:nth-child(2)")
    assert header.get_attribute("aria-sort") == "descending"
    scores = [float(text) for text in column(page, 1) if text != "–"]
    assert scores == sorted(scores, reverse=True)
    assert len(set(scores)) > 1
    button.press("Enter")
    assert header.get_attribute("aria-sort") == "ascending"
    assert [float(text) for text in column(page, 1) if text != "–"] == sorted(scores)
    page.locator("#matrix thead th:nth-child(1) button").press(" ")
    assert column(page, 0)[0] == "last"
    assert header.get_attribute("aria-sort") == "none"


def test_the_table_of_groups_is_filtered_by_text_and_by_choice(page: Any) -> None:
    page.click("#groups-details summary")
    rows = page.locator("#groups tbody tr")
    rows.first.wait_for()  # a table is made when it is opened, a moment after the click
    assert rows.count() == 11  # six methods, three of them also on a small draw, two on intents
    page.fill("#groups input[type=search]", "attention")
    assert rows.count() == 4
    page.select_option("#groups select >> nth=0", label="desk-de · intent")
    assert rows.count() == 1
    page.fill("#groups input[type=search]", "no such words")
    assert rows.count() == 0
    assert "0 of 11 rows" in page.inner_text("#groups [role=status]")


def test_the_theme_is_the_systems_until_it_is_switched(open_page: Open, page: Any) -> None:
    dark, light = open_page(color_scheme="dark"), page
    shade = "getComputedStyle(document.body).backgroundColor"
    assert dark.evaluate(shade) != light.evaluate(shade)
    label = "getComputedStyle(document.querySelector('#charts svg text')).fill"
    before = dark.evaluate(label)
    dark.click("#theme")  # from the system's to light
    assert dark.inner_text("#theme") == "Theme: light"
    assert dark.evaluate(shade) == light.evaluate(shade)
    assert dark.evaluate(label) != before  # charts follow
    dark.click("#theme")
    assert dark.inner_text("#theme") == "Theme: dark"
    assert dark.evaluate(label) == before


def test_a_script_in_a_corpus_is_shown_and_not_run(page: Any, made: Any) -> None:
    page.fill("#inside-body input[type=search]", "onerror")
    assert page.locator("#inside-body .sentences button").count() == 1
    page.fill("#inside-body input[type=search]", "<script>")
    assert made.script in page.inner_text("#inside-body .sentences")
    assert made.script in page.inner_text("#inside-body table.heat")
    assert "</script>" in page.inner_text("#inside-body table.heat")
    assert page.evaluate("window.stolen === undefined")
    assert page.locator("img").count() == 0
    page.fill("#inside-body input[type=search]", "")
    choose(page, 0, "intent")
    assert "<b>bold</b>" in page.inner_text("#inside-body table.confusion")
    assert page.locator("b").count() == 0


def test_another_run_has_its_own_counts_below_its_sentences(page: Any) -> None:
    choose(page, 0, "slots")
    choose(page, 1, "last,")
    page.evaluate("document.querySelector('#inside-body .grid2').firstElementChild.dataset.old = ''")
    page.fill("#inside-body input[type=search]", "a")
    assert page.locator("#inside-body .grid2 [data-old]").count() == 1  # a filter is of sentences alone
    choose(page, 1, "attention,")
    assert page.locator("#inside-body .grid2 [data-old]").count() == 0
    assert page.locator("#inside-body .grid2 table").count() >= 1


def test_a_look_inside_has_weights_that_sum_to_one_and_filters_to_errors(open_page: Open) -> None:
    page = open_page(wait=False)
    choose(page, 0, "slots")
    choose(page, 1, "attention,")
    for row in page.locator("#inside-body table.heat tbody tr").all():
        weights = [float(text) for text in row.locator("td.weight").all_inner_texts()]
        assert len(weights) == 3
        assert sum(weights) == pytest.approx(1, abs=0.02)
    sentences = page.locator("#inside-body .sentences button")
    every = sentences.count()
    assert every == 16
    page.check("#inside-body input[type=checkbox]")
    wrong = sentences.count()
    assert 0 < wrong < every or page.locator("#inside-body .sentences .wrong").count() == every
    assert page.locator("#inside-body .sentences .wrong").count() == wrong
    page.select_option("#inside-body .controls select >> nth=2", label="missed")
    assert 0 < sentences.count() <= wrong
    assert "missed" in page.inner_text("#inside-body dl.answers")


def test_on_a_phone_nothing_is_wider_than_the_window(open_page: Open) -> None:
    page = open_page(viewport=PHONE)
    for name in ("groups", "runs"):
        page.click(f"#{name}-details summary")
        page.locator(f"#{name} tbody tr").first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    assert page.locator("#charts svg").count() >= 10


def test_readers_with_a_screen_reader_or_few_colours_can_use_the_first_section(open_page: Open) -> None:
    page = open_page(viewport=PHONE, color_scheme="dark", wait=False)
    assert violations(page, "#summary") == []


@pytest.mark.soak("products")
def test_they_can_use_the_whole_page_with_everything_open(open_page: Open) -> None:
    page = open_page()
    for details in page.locator("details > summary").all():
        details.click()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert violations(page) == []


def test_axes_have_whole_epochs_and_seconds_without_prefixes(page: Any) -> None:
    def ticks(name: str) -> list[str]:
        return [text for text in page.locator(f"#figure-{name} svg .role-axis-label text").all_text_contents() if text]

    assert all(re.fullmatch(r"[\d.,−-]+", text) for text in ticks("seconds"))
    assert any(float(text.replace("−", "-")) < 1 for text in ticks("seconds"))  # where a prefix stood: 200m
    below = "#figure-score-by-epoch svg g[aria-label^='X-axis'] .role-axis-label text"
    epochs = page.locator(below).all_text_contents()
    assert {text for text in epochs if text} <= {str(epoch) for epoch in range(1, 7)}


def test_it_prints_in_ink_on_paper(open_page: Open) -> None:
    page = open_page(color_scheme="dark")
    assert len(page.pdf(format="A4")) > 50_000
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.is_visible("#theme")
    ink = page.evaluate("getComputedStyle(document.querySelector('#charts svg text')).fill")
    assert sum(map(int, ink[4:-1].split(","))) < 330


def test_the_data_of_a_chart_stand_behind_it(page: Any) -> None:
    figure = page.locator("#figure-parameters")
    figure.locator("summary").click()
    figure.locator("tbody tr").first.wait_for()
    rows = figure.locator("tbody tr").count()
    link = figure.locator("a[download]")
    link.focus()
    content = link.get_attribute("href")
    assert link.get_attribute("download") == "parameters.csv"
    assert content.startswith("data:text/csv")
    assert content.count("%0A") == rows + 1 > 6


def test_the_keyboard_reaches_the_content_first(open_page: Open) -> None:
    page = open_page(wait=False)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "content"
    named = "e => (e.labels && e.labels.length > 0) || e.innerText !== ''"
    assert page.evaluate(f"[...document.querySelectorAll('select, input, button')].every({named})")


def test_the_keyboard_reaches_every_control_and_shows_where_it_is(open_page: Open) -> None:
    page = open_page()
    wanted = page.locator("a[href]:visible, button:visible, select:visible, input:visible, summary:visible").count()
    seen, unmarked = 0, []
    for _ in range(3 * wanted):
        page.keyboard.press("Tab")
        at = page.evaluate("""() => {
            const at = document.activeElement, style = getComputedStyle(at);
            const marked = style.outlineStyle !== "none" || style.boxShadow !== "none";
            return [at.tagName, at.outerHTML.slice(0, 80), marked];
        }""")
        if at[0] == "BODY":
            break
        seen += at[0] in ("A", "BUTTON", "SELECT", "INPUT", "SUMMARY")
        unmarked += [] if at[2] else [at[1]]
    else:
        pytest.fail("the keyboard does not come to the end of the page")
    assert seen >= wanted
    assert unmarked == []
