"""Options that several commands share: those that load trained heads and read new examples, and of them alone
``--device`` and ``--trust-remote-code``.
"""

from __future__ import annotations

import click

from fusionkit.cli.options.flags import flag, with_all
from fusionkit.options.tables import ENCODE

device_option = click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda:0.")
code_option = flag(ENCODE["trust-remote-code"])
column_options = with_all([
    click.option("--text", help="Column with the text. [default: as in training, else guessed]"),
    click.option("--pair", help="Column with the second text of a pair. [default: as in training, else guessed]"),
    click.option("--tokens", help="Column with lists of words. [default: as in training, else guessed]"),
    click.option("--columns", metavar="NAME,…", help="Names of a CoNLL file's columns, like index,word,_,tag."),
])  # fmt: skip
loading_options = with_all([
    click.option("--encoder", help="The encoder's folder, if it has moved."),
    device_option,
    code_option,
    click.option("--trust-module", "trust_modules", multiple=True,
                 help="Module whose code an exported head may run; several times."),
    click.option("--trust-encoder", is_flag=True,
                 help="Load an encoder that an exported head names from a local folder."),
])  # fmt: skip
