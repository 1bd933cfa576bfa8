"""The options that say how a source is encoded, shared by ``encode`` and ``estimate``, and what they load."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fusionkit.cli.completion import files, folders
from fusionkit.specs import COMPRESSIONS, COMPUTE_DTYPES, PAIR_FORMS, ROWS, STATE_DTYPES, EncodeSpec

if TYPE_CHECKING:
    from fusionkit.encoder import Encoder
    from fusionkit.sources import Columns, Source

Command = TypeVar("Command", bound=Callable[..., Any])

OPTIONS = (
    click.argument("source", shell_complete=files),
    click.option(
        "--encoder", default="minilm", show_default=True, shell_complete=folders, help="'minilm', a folder or a hub id."
    ),
    click.option("--encoder-revision", help="Revision of a hub encoder."),
    click.option("--config", help="Configuration of a hub data set."),
    click.option("--revision", help="Revision of a hub data set."),
    click.option("--rows", type=click.Choice(ROWS), help="What a stored row is. [default: by the columns]"),
    click.option("--layers", default="all", show_default=True, help="all, 0,6,12 or -4: (0 is the embeddings)."),
    click.option("--dtype", type=click.Choice(STATE_DTYPES), default="float16", show_default=True),
    click.option("--compress", type=click.Choice(COMPRESSIONS), default="none", show_default=True),
    click.option("--compute-dtype", type=click.Choice(COMPUTE_DTYPES), default="float32", show_default=True),
    click.option("--max-length", type=int, help="Sub-tokens an example may have. [default: the encoder's limit]"),
    click.option("--text", help="Column with the text. [default: guessed]"),
    click.option("--pair", help="Column with the second text of a pair. [default: guessed]"),
    click.option(
        "--pair-as", type=click.Choice(PAIR_FORMS), help="A pair as so many sequences. [default: by the encoder]"
    ),
    click.option("--tokens", help="Column with lists of words. [default: guessed]"),
    click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda:0."),
    click.option("--task", type=click.Choice(("mlm",)), help="mlm: mask sub-tokens and keep their rows alone."),
    click.option("--mask-seed", default=0, show_default=True, help="With --task mlm: which sub-tokens are masked."),
    click.option("--mask-share", default=0.15, show_default=True, help="With --task mlm: how many of them."),
    click.option("--trust-remote-code", is_flag=True, help="Let a hub encoder run its own Python code."),
)


def encoding_options(command: Command) -> Command:
    """Add the argument SOURCE and all options above, in their order."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def load_inputs(
    say: Callable[[str], None],
    *,
    source: str,
    encoder: str,
    encoder_revision: str | None,
    config: str | None,
    revision: str | None,
    text: str | None,
    pair: str | None,
    tokens: str | None,
    device: str,
    **spec: Any,
) -> tuple[Source, Columns, EncodeSpec, Encoder]:
    """What the options name, the columns' roles said aloud."""
    from fusionkit.encode.text_pairs import choose_pair_as
    from fusionkit.encoder import load_encoder
    from fusionkit.sources import guess_columns, open_source

    chosen = EncodeSpec(encoder=encoder, revision=encoder_revision, **spec)
    opened = open_source(source, config=config, revision=revision, lines=chosen.task == "mlm")
    columns = guess_columns(opened, text=text, pair=pair, tokens=tokens)
    say(f"columns: {columns}")
    loaded = load_encoder(
        encoder,
        revision=encoder_revision,
        device=device,
        compute_dtype=chosen.compute_dtype,
        words=columns.tokens is not None,
        trust_remote_code=chosen.trust_remote_code,
        masked_lm=chosen.task == "mlm",
    )
    taken = choose_pair_as(chosen.pair_as, columns, loaded)
    if taken is not None and chosen.pair_as is None:
        why = "was" if loaded.of_sentences else "was not"
        say(f"pairs: as {taken} ({encoder!r} {why} trained to encode single sentences; --pair-as chooses)")
    return opened, columns, chosen, loaded
