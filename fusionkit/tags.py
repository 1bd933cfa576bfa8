"""Tag sequences: recognising span schemes and turning IOB1 into BIO2.

In IOB1 a span begins with ``I-`` unless it directly follows a span of its own type; in BIO2 each span
begins with ``B-``. CoNLL-2003 is distributed in IOB1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from fusionkit.plural import few

LIKE_SPANS = re.compile("O|[BIESLU]-.+", re.IGNORECASE | re.DOTALL)  # also in other schemes, or in lower case
SCHEMES = {"BIOES": {"E-", "S-"}, "BILOU": {"L-", "U-"}}  # their marks beside those of BIO


def is_span_tag(tag: str) -> bool:
    """True for ``O``, ``B-type`` and ``I-type``."""
    return tag == "O" or (tag[:2] in ("B-", "I-") and len(tag) > 2)


def are_span_tags(tags: Iterable[str]) -> bool:
    """True where every tag is a span tag and at least one opens a span: POS tags are not."""
    distinct = set(tags)
    return bool(distinct - {"O"}) and all(is_span_tag(tag) for tag in distinct)


def other_scheme(tags: Iterable[str]) -> str | None:
    """Why tags are read as no spans though most of them look like spans: ``b-PER is no BIO tag``. None where they are
    read as spans, or look like other tags.
    """
    distinct = sorted(set(tags))
    alike = [tag for tag in distinct if LIKE_SPANS.fullmatch(tag)]
    strange = [tag for tag in distinct if not is_span_tag(tag)]
    if not strange or 2 * len(alike) <= len(distinct) or all(tag in ("O", "o") for tag in alike):
        return None
    named, marks = few([tag or "an empty tag" for tag in strange], 3), {tag[:2] for tag in strange}
    for scheme, own in SCHEMES.items():
        if marks <= own:
            return f"they are {scheme} ({named}), not BIO"
    return f"{named} {'is no BIO tag' if len(strange) == 1 else 'are no BIO tags'}"


def span_types(tags: Iterable[str]) -> set[str]:
    """The types of the spans that span tags mark."""
    return {tag[2:] for tag in tags if tag != "O"}


def spans_of(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """The spans that tags mark, as conlleval counts them: type, first word, and the word after the last; none for tags
    of another scheme.
    """
    found: list[tuple[str, int, int]] = []
    for at, tag in enumerate(to_bio2(tags)):
        if not is_span_tag(tag):
            continue
        if tag.startswith("B-"):
            found.append((tag[2:], at, at + 1))
        elif tag.startswith("I-"):  # it continues the last span: in BIO2 an I- tag always follows a tag of its type
            kind, start, _ = found[-1]
            found[-1] = (kind, start, at + 1)
    return found


def to_bio2(tags: Sequence[str]) -> list[str]:
    """The same spans, with ``B-`` as the first tag of each."""
    fixed, previous = [], "O"
    for tag in tags:
        opens = is_span_tag(tag) and tag.startswith("I-") and previous[1:] != tag[1:]
        fixed.append("B-" + tag[2:] if opens else tag)
        previous = tag if is_span_tag(tag) else "O"  # a tag of another scheme continues no span
    return fixed
