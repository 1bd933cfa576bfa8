"""The options that say how a source is encoded, shared by ``encode`` and ``estimate``, and what they load."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from fusionkit.cli.options.completion import files, folders
from fusionkit.cli.options.flags import flags, with_all
from fusionkit.options.tables import ENCODE
from fusionkit.specs import EncodeSpec

if TYPE_CHECKING:
    from fusionkit.encoder import Encoder
    from fusionkit.sources import Columns, Source

encoding_options = with_all([
    click.argument("source", shell_complete=files), *flags(ENCODE.values(), {"encoder": {"shell_complete": folders}})
])  # fmt: skip


def load_inputs(
    say: Callable[[str], None],
    load: Callable[..., Encoder] | None = None,
    *,
    source: str,
    encoder: str,
    encoder_revision: str | None,
    config: str | None,
    revision: str | None,
    text: str | None,
    pair: str | None,
    tokens: str | None,
    columns: str | None,
    device: str,
    **spec: Any,
) -> tuple[Source, Columns, EncodeSpec, Encoder]:
    """The source, encoder and columns that the options name; prints the columns' roles and the first example."""
    from fusionkit.encoder.reference import encoder_place
    from fusionkit.sources import column_names, first_example, guess_columns, open_source

    chosen = EncodeSpec(encoder=encoder, revision=encoder_revision, **spec)
    encoder_place(encoder, encoder_revision)  # report a misspelt name before anything is read
    names = column_names(columns)
    opened = open_source(
        source, config=config, revision=revision, lines=chosen.task == "mlm", columns=names, limit=chosen.limit
    )
    roles = guess_columns(opened, text=text, pair=pair, tokens=tokens)
    say(f"columns: {roles}")
    say(f"first example: {first_example(opened, roles)}")
    from fusionkit.encoder.lean_import import import_models

    import_models()
    from fusionkit.encode.text_pairs import choose_pair_as
    from fusionkit.encoder import load_encoder

    loaded = (load or load_encoder)(
        encoder,
        revision=encoder_revision,
        device=device,
        compute_dtype=chosen.compute_dtype,
        words=roles.tokens is not None,
        trust_remote_code=chosen.trust_remote_code,
        masked_lm=chosen.task == "mlm",
        untrained=chosen.untrained,
    )
    taken = choose_pair_as(chosen.pair_as, roles, loaded)
    if taken is not None and chosen.pair_as is None:
        why = "was" if loaded.of_sentences else "was not"
        say(f"pairs: as {taken} ({encoder!r} {why} trained to encode single sentences; --pair-as chooses)")
    return opened, roles, chosen, loaded
