"""The store: its layout, manifest, writer, reader and verification."""

from fusionkit.store.manifest import is_complete, is_store
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
