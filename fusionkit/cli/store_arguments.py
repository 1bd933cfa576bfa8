"""Stores with shares as the user writes them: ``de.store``, ``de.store:5%``, ``s3://bucket/de.store:200``."""

from __future__ import annotations

from fusionkit.cli.console import given_store
from fusionkit.dataset.share import WRITTEN, Share, parse_share
from fusionkit.places import Place, place_errors, place_of
from fusionkit.store import is_store


def given_share(text: str) -> Share:
    """The store and share that the user named; a store whose own name ends so is that store, whole."""
    before, colon, behind = text.rpartition(":")
    if not colon or not before or "/" in behind or _is_there(place_of(text)):
        return Share(given_store(place_of(text)))
    if not WRITTEN.fullmatch(behind) and not _is_there(place_of(before)):
        return Share(given_store(place_of(text)))
    return Share(given_store(place_of(before)), parse_share(behind))


def _is_there(place: Place) -> bool:
    with place_errors(place):
        return bool(is_store(place))
