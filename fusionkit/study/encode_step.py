"""The step of a source: encode it into a store."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fusionkit.encoder.reference import BUNDLED
from fusionkit.errors import IdentityError
from fusionkit.sources import Source, source_from
from fusionkit.store.manifest import read_manifest
from fusionkit.store.presence import MANIFEST, is_complete
from fusionkit.study.folder import StudyFolder, content_of
from fusionkit.study.steps import Commands, Made, Step
from fusionkit.study.study import SourceStep


def encode_step(source: SourceStep, work: StudyFolder, commands: Commands) -> Step:
    """Encode a source, continue an unfinished store, or find it complete."""
    store = work.store(source.name)

    def made_from() -> dict[str, Any]:
        place, encoder = Path(source.options["source"]), source.options.get("encoder", "minilm")
        found = dict(source.options)
        if place.exists():
            found["content sha256"] = content_of(place)
        if encoder not in BUNDLED and (folder := Path(encoder)).is_dir():
            found["encoder sha256"] = content_of(folder)
        return found

    def there() -> Made:
        return {work.name(store / MANIFEST): content_of(store / MANIFEST)} if is_complete(store) else {}

    def make() -> Made:
        try:
            commands.encode(source.options, store)
        except IdentityError as error:
            raise IdentityError(
                error.what,
                expected="a folder of this study",
                remedy="choose another --out, or remove that store: it was made from something else",
            ) from error
        return there()

    return Step(
        f"encode {source.name}",
        shlex.join(["fusionkit", "encode", *source.command, "--out", str(store)]),
        made_from,
        lambda _: there(),
        make,
        lambda: {"store": read_manifest(store)["provenance"]},
    )


def opened_once() -> Callable[[SourceStep], Source]:
    """A function that opens a source as an encode does; it reads a data set once, even if several sources encode it."""
    opened: dict[tuple[Any, ...], Source] = {}

    def open_known(source: SourceStep) -> Source:
        options, of_data = source.options, ("source", "config", "revision", "columns", "limit")
        key = (options.get("task") == "mlm", *(options.get(name) for name in of_data))
        if key not in opened:
            opened[key] = source_from(options)
        return opened[key]

    return open_known
