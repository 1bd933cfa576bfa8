"""Checks that one head can read several stores; an error shows the differing fields side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from fusionkit.errors import UsageError
from fusionkit.plural import few
from fusionkit.store import Split, Store
from fusionkit.store.same_encoder import shown_states
from fusionkit.tags import are_span_tags


def train_split(store: Store) -> Split:
    """The split from whose columns the task is inferred: train, or without train the first."""
    return store["train" if "train" in store.splits else store.splits[0]]


def distinct(stores: Sequence[Store]) -> tuple[Store, ...]:
    """The stores without repeats: of stores with one digest, the first."""
    found: dict[str, Store] = {}
    for store in stores:
        found.setdefault(store.digest, store)
    return tuple(found.values())


def legible_names(stores: Sequence[Store]) -> dict[str, str]:
    """A readable name for each store, by its digest: its source, and part of the digest where two names are equal."""
    sources = Counter(store.name for store in stores)
    return {
        store.digest: store.name if sources[store.name] == 1 else f"{store.name}/{store.digest[:8]}" for store in stores
    }


def shared_layers(stores: Sequence[Store]) -> tuple[int, ...]:
    """The layers that every store has, ascending."""
    return tuple(sorted(set.intersection(*(set(store.layers) for store in stores))))


def check_same_encoder(stores: Sequence[Store], but: Sequence[str] = ()) -> None:
    """Refuse stores whose states cannot be mixed: they differ in encoder, rows, kind of input or form of pairs, or
    share no layer.

    Args:
        but: fields that may differ.
    """
    facts = [_facts(store) for store in stores]
    may_differ = {*but, "layers"} if shared_layers(stores) else {*but}
    different = [name for name in facts[0] if name not in may_differ and len({fact[name] for fact in facts}) > 1]
    if set(different) - {"encoder"}:  # one encoder may have been named in two ways
        raise UsageError(
            "one head cannot read these stores; these fields differ:\n" + _side_by_side(stores, facts, different),
            remedy="encode them again alike: one encoder, the same --rows and --pair-as, --layers that overlap",
        )


def refuse_without(stores: Sequence[Store], column: str) -> None:
    """Raise UsageError if a store lacks the column to learn."""
    found = [train_split(store).column_names for store in stores]
    lacking = [store for store, columns in zip(stores, found, strict=True) if column not in columns]
    if lacking:
        raise UsageError(
            f"{', '.join(str(store.path) for store in lacking)} has no column {column!r}",
            expected="the column to learn, of one name, in every store",
            received="; ".join(f"{s.path}: {', '.join(c)}" for s, c in zip(stores, found, strict=True)),
            remedy="choose a --label that all have, or rename the column in the source and encode again",
        )


def refuse_disjoint(stores: Sequence[Store], column: str, names: Mapping[str, set[str]]) -> None:
    """Raise UsageError if a store shares no label with any other.

    ``names`` are the labels of each store, by its digest. The span tag ``O`` does not count as a label.
    """
    told = {digest: found - {"O"} if are_span_tags(found) else found for digest, found in names.items()}
    for store in stores:
        others = set().union(*(told[other.digest] for other in stores if other is not store))
        if len(stores) > 1 and not told[store.digest] & others:
            raise UsageError(
                f"no label in column {column!r} of {store.path} occurs in another store",
                expected="label names that are the same in the stores",
                received="; ".join(f"{each.path}: {few(sorted(told[each.digest]), 6)}" for each in stores),
                remedy="choose another --label, or give the classes the same names and encode again",
            )


def _facts(store: Store) -> dict[str, Any]:
    columns, identity = store.manifest["columns"], store.manifest["identity"]
    return {
        "encoder": store.manifest["encoder"]["name"],
        **shown_states(identity["encoder"], store.rows, columns, identity.get("pair_as", "one")),
        "hidden": store.hidden,
        "layers": ", ".join(map(str, store.layers)),
    }


def _side_by_side(stores: Sequence[Store], facts: Sequence[Mapping[str, Any]], fields: Sequence[str]) -> str:
    lines = [["", *(str(store.path) for store in stores)]]
    lines += [[name, *(str(fact[name])[:40] for fact in facts)] for name in fields]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "    " + "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
