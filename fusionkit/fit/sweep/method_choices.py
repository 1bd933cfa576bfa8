"""What a method brings into a sweep: its spelling, its rates, and the options that its paper trains with.

    --encoder-lr grid     the method's four rates, each a run
    nothing given         its first rate, its epochs, a tenth of the steps as warm-up, and 0.01 of decay where it trains
                          the encoder as a whole or its last layers, with AdamW

An option that the user gives wins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fusionkit.errors import UsageError
from fusionkit.methods.table import parse_method
from fusionkit.options.entry import options_of
from fusionkit.specs import AUTO, ENCODER, FROZEN, OF_METHODS, RunSpec

GRID, TEXT, ADAMW = "grid", "none", "adamw"
WARMUP, DECAY = 0.1, 0.01


def method_spelling(text: str) -> str:
    """A method's one spelling; UsageError for an unknown one."""
    return str(parse_method(text))


def over_frozen_encoder(text: str) -> str:
    """The spelling of a method with which it trains only the parts that it adds; UsageError if it adds none, or trains
    weights of the encoder beside them.
    """
    method = parse_method(text)
    if ENCODER in method.options:
        frozen = method.options[ENCODER] == FROZEN
        return str(method) if frozen else str(parse_method(f"{method},{ENCODER}={FROZEN}"))
    if method.entry.own_weights or method.options.get("norms"):
        raise UsageError(
            f"--freeze encoder does not go with {method}: it trains the encoder's own weights",
            expected="methods that only add parts to the encoder, like pals, low-rank, houlsby or lora",
            received=f"--method {method}",
            remedy=f"choose another, or --method {FROZEN}",
        )
    return str(method)


def check_encoder_rate(text: str) -> None:
    """Refuse what is neither a rate nor ``grid``; for files and flags."""
    if text != GRID:
        rate_of(text)


def rate_of(given: float | str) -> float:
    """A rate from a text or a number."""
    try:
        value = float(given)
    except ValueError as error:
        raise UsageError(
            "--encoder-lr takes a rate, or the method's own four",
            expected=f"a number like 2e-5, or {GRID}",
            received=str(given),
        ) from error
    return float(options_of(RunSpec)["encoder_lr"].check(value))


def options_for(method: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The training options of a sweep's runs with one method, by parameter.

    Args:
        method: its spelling. given: the user's options for all methods of the sweep.
    """
    if method == FROZEN:  # options of methods do not apply to it
        known = options_of(RunSpec)
        of_methods = {known[name].parameter for name in OF_METHODS}
        return {name: value for name, value in given.items() if name not in of_methods}
    own = parse_method(method).rates
    rates = given.get("encoder_lrs") or (own[0],)
    rates = rates if isinstance(rates, (tuple, list)) else (rates,)
    every = [rate for each in rates for rate in (sorted(own) if each == GRID else (rate_of(each),))]
    return {**usual(method, given.get("optimizer", ADAMW)), **given, "encoder_lrs": tuple(dict.fromkeys(every))}


def usual(method: str, optimizer: str = ADAMW) -> dict[str, Any]:
    """The default fields of a method's runs, without their rate."""
    spec = parse_method(method)
    # Adam makes a full step of a small gradient: with decay as an L2 term, the embeddings of all tokens that the data
    # lacks would shrink at each step, until the encoder has forgotten them.
    decay = {"weight_decay": DECAY} if spec.trains_encoder and optimizer == ADAMW else {}
    return {"epochs": spec.entry.epochs, "warmup": WARMUP, **decay}


def usual_run(method: str, optimizer: str = ADAMW) -> dict[str, Any]:
    """The default fields of one run of a method."""
    return {**usual(method, optimizer), "encoder_lr": parse_method(method).rates[0]}


def refuse_strays(methods: Sequence[str], given: Mapping[str, Any]) -> None:
    """Refuse options of methods where all runs are frozen (UsageError)."""
    if any(method != FROZEN for method in methods):
        return
    known = options_of(RunSpec)
    for name in OF_METHODS:
        if known[name].parameter in given:
            raise UsageError(
                f"--{known[name].flag} applies only to methods that train through the encoder",
                expected="such a --method",
                received=f"--method {FROZEN} alone",
                remedy=f"leave --{known[name].flag} out, or add a --method like full",
            )


def asked_layer(given: str | int) -> str | int:
    """``auto``, ``none`` or a layer; UsageError for anything else."""
    text = str(given)
    if text in (AUTO, TEXT):
        return text
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise UsageError(
            "--from-layer takes a stored layer",
            expected=f"{AUTO}, {TEXT}, or the index of a layer from 1 on (0 is the embeddings, which save nothing)",
            received=text,
            remedy="choose one of these",
        )
    return int(text)
