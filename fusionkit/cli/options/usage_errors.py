"""click's errors in the form of fusionkit's: what, expected, received, remedy."""

from __future__ import annotations

import click

from fusionkit.errors import UsageError, unknown_name

KINDS = {"integer": "a whole number", "float": "a number"}


def as_usage_error(error: click.UsageError) -> UsageError:
    """Convert click's error in a command line to fusionkit's own."""
    context, param = error.ctx, getattr(error, "param", None)
    if context is None:  # an option without its value
        return UsageError(error.message.rstrip("."), remedy="see `fusionkit COMMAND --help`")
    name, see = context.info_name, f"see `{context.command_path} --help`"
    usage = " ".join([context.command_path, *context.command.collect_usage_pieces(context)])
    if isinstance(error, click.NoSuchOption):
        options = [spelt for each in context.command.params for spelt in each.opts]
        near = unknown_name("option", error.option_name, options).remedy or ""
        return UsageError(
            f"{name} has no option {error.option_name}", remedy=f"{near} {see}" if near.endswith("?") else see
        )
    if isinstance(error, click.MissingParameter) and param is not None:
        if isinstance(param, click.Option):
            return UsageError(f"{name} needs {param.opts[0]}", expected=param.help, remedy=see)
        return UsageError(f"{name} needs {param.human_readable_name}", expected=usage, remedy=see)
    received, is_not, _ = error.message.partition(" is not ")  # how messages of click's own types begin
    if isinstance(error, click.BadParameter) and param is not None and not is_not:
        return UsageError(f"{param.opts[0]}: {error.message}", expected=param.type.name, remedy=see)
    if isinstance(error, click.BadParameter) and param is not None:
        received = received.strip("'")
        if isinstance(param.type, click.Choice):
            return unknown_name(param.opts[0], received, param.type.choices)
        least = getattr(param.type, "min", None)
        kind = KINDS.get(param.type.name.split()[0], param.type.name) + ("" if least is None else f", {least} or more")
        return UsageError(f"{param.opts[0]} cannot be {received}", expected=kind, received=received, remedy=see)
    return UsageError(f"{name}: {error.message[:1].lower()}{error.message[1:]}", expected=usage, remedy=see)
