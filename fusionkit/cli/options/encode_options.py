"""The options that say how a source is encoded, shared by ``encode`` and ``estimate``, and what they load."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from fusionkit.cli.options.completion import files, folders
from fusionkit.cli.options.flags import flags, with_all
from fusionkit.names import ROLES
from fusionkit.options.tables import ENCODE
from fusionkit.plural import few
from fusionkit.specs import EncodeSpec

if TYPE_CHECKING:
    from fusionkit.encoder import Encoder
    from fusionkit.sources import Columns, Source

encoding_options = with_all([
    click.argument("source", shell_complete=files), *flags(ENCODE.values(), {"encoder": {"shell_complete": folders}})
])  # fmt: skip


def load_inputs(
    say: Callable[[str], None], options: Mapping[str, Any], load: Callable[..., Encoder] | None = None
) -> tuple[Source, Columns, EncodeSpec, Encoder]:
    """The source, its columns' roles, the spec and the encoder, in this order; prints the roles, the first example
    and choices that follow from them.

    Args:
        options: those of ``encode`` by parameter; only ``source`` and ``device`` are needed. load: used instead of
            :func:`fusionkit.encoder.load_encoder`.
    """
    from fusionkit.encoder.reference import encoder_place
    from fusionkit.sources import first_example, guess_columns, source_from

    spec = EncodeSpec.of(options)
    encoder_place(spec.encoder, spec.revision)  # report a misspelt name before anything is read
    opened = source_from(options)
    roles = guess_columns(opened, **{role: options.get(role) for role in ROLES})
    say(f"columns: {roles}")
    say(f"first example: {first_example(opened, roles)}")
    if spec.rows is None and spec.task is None and roles.tags and roles.labels:
        why = f"because there are tags and labels ({few(roles.labels, 3)})"
        say(f"rows of tokens, {why}; --rows words is enough for tags")
    from fusionkit.encoder.lean_import import import_models

    import_models()
    from fusionkit.encode.text_pairs import choose_pair_as
    from fusionkit.encoder import load_encoder

    loaded = (load or load_encoder)(
        spec.encoder,
        revision=spec.revision,
        device=options["device"],
        compute_dtype=spec.compute_dtype,
        words=roles.tokens is not None,
        trust_remote_code=spec.trust_remote_code,
        lm_head=spec.lm_head if spec.task == "mlm" else None,
        untrained=spec.untrained,
    )
    taken = choose_pair_as(spec.pair_as, roles, loaded)
    if taken is not None and spec.pair_as is None:
        why = "was" if loaded.of_sentences else "was not"
        say(f"pairs: as {taken} ({spec.encoder!r} {why} trained to encode single sentences; --pair-as chooses)")
    return opened, roles, spec, loaded
