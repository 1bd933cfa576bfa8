"""The store: its layout, manifest, reader and verification."""

from typing import TYPE_CHECKING

from fusionkit.lazy import lazily
from fusionkit.store.presence import is_complete, is_store

if TYPE_CHECKING:
    from fusionkit.store.reader import Split, Store, open_planned, open_store
    from fusionkit.store.states import HiddenStates
    from fusionkit.store.verify import Checked, verify_store

__all__ = [
    "Checked",
    "HiddenStates",
    "Split",
    "Store",
    "is_complete",
    "is_store",
    "open_planned",
    "open_store",
    "verify_store",
]

# These load torch and zarr.
__getattr__ = lazily(
    __name__,
    {
        "fusionkit.store.reader": ("Split", "Store", "open_planned", "open_store"),
        "fusionkit.store.states": ("HiddenStates",),
        "fusionkit.store.verify": ("Checked", "verify_store"),
    },
)
