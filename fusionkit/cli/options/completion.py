"""Shell completion for values that click does not know. This module imports little, because each completion waits for
it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import click
from click.shell_completion import CompletionItem

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
folders: Complete = click.Path(file_okay=False).shell_complete  # whatever folders the shell finds
files: Complete = click.Path().shell_complete  # and files too


def names(known: Mapping[str, str] | Iterable[str]) -> Complete:
    """Names with a fixed beginning; a mapping's values stand beside them where the shell shows such."""
    told = known if isinstance(known, Mapping) else dict.fromkeys(known)

    def complete(context: click.Context, parameter: click.Parameter, beginning: str) -> list[CompletionItem]:
        return [CompletionItem(name, help=help) for name, help in told.items() if name.startswith(beginning)]

    return complete
