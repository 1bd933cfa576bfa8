"""fusionkit: encode once with a frozen transformer, then train many late-fusion heads over every layer."""

from importlib.metadata import version

from fusionkit.errors import FusionkitError
from fusionkit.ragged import Ragged
from fusionkit.store import Store, open_store

__version__ = version("fusionkit")
__all__ = ["FusionkitError", "Ragged", "Store", "__version__", "open_store"]
