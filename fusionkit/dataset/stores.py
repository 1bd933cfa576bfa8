"""What runs are trained over: a store, a mix of stores under one task, or the stores of several tasks."""

from __future__ import annotations

from collections.abc import Sequence

from fusionkit.dataset.mixture import Mix
from fusionkit.dataset.task_stores import TaskStores
from fusionkit.store import Store

Stores = Store | Mix | TaskStores


def stores_of(stores: Stores) -> Sequence[Store]:
    """Each store once, the first one first."""
    return (stores,) if isinstance(stores, Store) else stores.stores
