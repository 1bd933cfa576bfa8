"""The stored layer that the runs of a method start from, chosen by the user, the store and the method.

    auto    the highest stored layer below all that the method changes, from 1 on; none where there is none, the
            encoder cannot start there, or it brings code of its own
    none    from the text
    k       that layer, or an error

Whether an encoder can start there is tried (:mod:`fusionkit.tuning.upper_layers`). This process may only give work to
others: if it cannot load the encoder, or lacks the memory, it assumes that the encoder can, and the runs try again.
"""

from __future__ import annotations

import importlib
from typing import Any

from fusionkit.dataset.stores import Stores, stores_of
from fusionkit.errors import CannotStartError, EncoderError, UntrustedCodeError, UsageError
from fusionkit.fit.sweep.method_choices import TEXT, asked_layer
from fusionkit.machine.resources import spare_memory
from fusionkit.methods.table import parse_method
from fusionkit.specs import AUTO, FROZEN, MASKED

STARTS = "fusionkit.tuning.start"
COPIES = 3  # of an encoder's weights in float32, held at once while it is loaded and tried
_known: dict[tuple[str, str, int | None], Any] = {}  # what start_of found, by store, method and layer


def start_layer(store: Stores, method: str, given: str | int) -> int | None:
    """The layer from which runs of a method start over a store, or a mix; None for the text.

    Raises:
        UsageError: no run of the method can start from the layer that is asked for, or the store lacks it.
    """
    asked = asked_layer(given)
    if method == FROZEN or asked == TEXT:
        return None
    depth = store.manifest["encoder"]["layers"] - 1
    lowest = parse_method(method).lowest_layer(depth)
    if asked == AUTO:
        highest = highest_below(store, method)
        return None if highest is None or isinstance(start_of(store, method, highest), CannotStartError) else highest
    assert isinstance(asked, int)
    if asked >= lowest:
        raise UsageError(
            f"a run of {method} cannot start from layer {asked}",
            expected=f"a layer from 1 to {lowest - 1}, below layer {lowest}, the lowest that it changes"
            if lowest > 1
            else "a method that leaves the lower layers as they are, like top:1 or houlsby:64,layers=-1:",
            received=f"--from-layer {asked}",
            remedy=f"choose another layer, or --from-layer {TEXT}",
        )
    if store.rows == MASKED:
        raise UsageError(
            f"a run cannot start from layer {asked} of masked sub-tokens",
            expected="states of whole sequences",
            received=f"rows of {MASKED}",
            remedy=f"choose --from-layer {TEXT}",
        )
    planned, layers = any(each.is_planned for each in stores_of(store)), ",".join(map(str, store.layers))
    if planned or asked not in store.layers:
        again = f"`fusionkit encode SOURCE --rows tokens --layers {layers},{asked} --out STORE`"
        missing = "the same `fusionkit encode` without --parts, which encodes what is missing"
        raise UsageError(
            f"the store has no states of layer {asked}",
            expected=f"layer {asked} among the stored layers",
            received="a plan without states" if planned else f"layers {layers}",
            remedy=f"run {missing if planned else again}, or choose --from-layer {TEXT}",
        )
    if isinstance(refused := start_of(store, method, asked), CannotStartError):
        raise refused.with_traceback(None)
    return asked


def highest_below(store: Stores, method: str) -> int | None:
    """The highest stored layer, from 1 on, that is below all layers that a method changes; None if there is none."""
    lowest = parse_method(method).lowest_layer(store.manifest["encoder"]["layers"] - 1)
    whole = store.rows != MASKED and not any(each.is_planned for each in stores_of(store))
    stored = store.layers if whole else ()
    return max((layer for layer in stored if 1 <= layer < lowest), default=None)


def start_of(store: Stores, method: str, layer: int) -> Any:
    """The :class:`fusionkit.tuning.start.Start` of a method from a stored layer, computed once per store, method and
    layer; the error if the encoder cannot start there; None if the encoder cannot be loaded, is not the store's, or
    memory is short. Loads transformers.
    """
    if (key := (stores_of(store)[0].digest, method, layer)) not in _known:
        spare = spare_memory()
        if spare is not None and COPIES * 4 * store.manifest["encoder"]["parameters"] > spare:
            return None
        try:
            _known[key] = importlib.import_module(STARTS).start_of(store, method, layer)
        # Code of its own may be trusted, which is not known here: then runs start from the text.
        except (CannotStartError, UntrustedCodeError) as error:
            # A copy is kept: the traceback of the error keeps the encoder in memory.
            told = {"expected": error.expected, "received": error.received, "remedy": error.remedy}
            _known[key] = CannotStartError(error.what, **told)
        except EncoderError:
            _known[key] = None
    return _known[key]


def known_start(store: Stores, method: str, layer: int | None) -> Any:
    """What :func:`start_of` found before; None if it was not asked. Loads nothing."""
    return _known.get((stores_of(store)[0].digest, method, layer))
