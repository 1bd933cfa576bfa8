"""Stores with shares as the user writes them: ``de.store``, ``de.store:5%``, ``s3://bucket/de.store:200``."""

from __future__ import annotations

from collections.abc import Sequence

from fusionkit.cli.console import given_store
from fusionkit.dataset.mixture import Mix, mix_of
from fusionkit.dataset.share import WRITTEN, Share, parse_share
from fusionkit.places import Place, place_errors, place_of
from fusionkit.store import Store, is_store


def given_share(text: str) -> Share:
    """The store and share that the user named; a store whose own name ends so is that store, whole.

    Raises:
        UsageError: there is no such store, or the share is none. StoreError: the store is unfinished or damaged.
    """
    before, colon, behind = text.rpartition(":")
    if not colon or not before or "/" in behind or _is_there(place_of(text)):
        return Share(given_store(place_of(text)))
    if not WRITTEN.fullmatch(behind) and not _is_there(place_of(before)):
        return Share(given_store(place_of(text)))
    return Share(given_store(place_of(before)), parse_share(behind))


def given_stores(texts: Sequence[str], judges: Sequence[Place]) -> Store | Mix:
    """What the user named to train on and, behind ``--evaluate-on``, to judge by; errors as :class:`Mix`."""
    return mix_of([given_share(text) for text in texts], [given_store(place) for place in judges])


def _is_there(place: Place) -> bool:
    with place_errors(place):
        return bool(is_store(place))
