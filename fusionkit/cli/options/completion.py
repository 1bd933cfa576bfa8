"""Shell completion for values that click cannot complete. This module imports little, because each completion waits
for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import click
from click.shell_completion import CompletionItem

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
folders: Complete = click.Path(file_okay=False).shell_complete  # the folders that the shell finds
files: Complete = click.Path().shell_complete  # and files too


def names(known: Mapping[str, str] | Iterable[str]) -> Complete:
    """Completion by known names; a mapping's values are shown beside them if the shell supports it."""
    told = known if isinstance(known, Mapping) else dict.fromkeys(known)

    def complete(context: click.Context, parameter: click.Parameter, beginning: str) -> list[CompletionItem]:
        return [CompletionItem(name, help=help) for name, help in told.items() if name.startswith(beginning)]

    return complete
