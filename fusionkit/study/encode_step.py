"""The step of a source: encode it into a store."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fusionkit.errors import IdentityError
from fusionkit.options.tables import ENCODE
from fusionkit.sources import Source, column_names, open_source
from fusionkit.store.manifest import read_manifest
from fusionkit.store.presence import MANIFEST, is_complete
from fusionkit.study.folder import StudyFolder, content_of
from fusionkit.study.steps import Commands, Made, Step
from fusionkit.study.study import SourceStep


def encode_step(source: SourceStep, work: StudyFolder, commands: Commands) -> Step:
    """Encode a source, continue an unfinished store, or find it complete."""
    store = work.store(source.name)

    def made_from() -> dict[str, Any]:
        place, encoder = Path(source.options["source"]), Path(source.options.get("encoder", "minilm"))
        found = dict(source.options)
        if place.exists():
            found["content sha256"] = content_of(place)
        if encoder.is_dir():
            found["encoder sha256"] = content_of(encoder)
        return found

    def there() -> Made:
        return {work.name(store / MANIFEST): content_of(store / MANIFEST)} if is_complete(store) else {}

    def make() -> Made:
        try:
            commands.encode(encode_options(source), store)
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


def open_data(source: SourceStep) -> Source:
    """The opened source, as an encode opens it; errors as in :func:`fusionkit.sources.open_source`."""
    options = encode_options(source)
    return open_source(
        options["source"],
        config=options["config"],
        revision=options["revision"],
        lines=options["task"] == "mlm",
        columns=column_names(options["columns"]),
        limit=options["limit"],
    )


def opened_once() -> Callable[[SourceStep], Source]:
    """A function like :func:`open_data` that reads a data set once, even if several sources encode it."""
    opened: dict[tuple[Any, ...], Source] = {}

    def open_known(source: SourceStep) -> Source:
        options = encode_options(source)
        of_data = ("source", "config", "revision", "columns", "limit")
        key = (options["task"] == "mlm", *(options[name] for name in of_data))
        if key not in opened:
            opened[key] = open_data(source)
        return opened[key]

    return open_known


def encode_options(source: SourceStep) -> dict[str, Any]:
    """All options of an encode by parameter, as ``load_inputs`` of the command line takes them."""
    plain = {entry.parameter: entry.default for entry in ENCODE.values() if entry.flag != "device"}
    return {**plain, **source.options}
