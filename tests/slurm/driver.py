"""``driver.py CHUNK_BYTES ARGUMENT…``: the command line, planning chunks of so many bytes."""

from __future__ import annotations

import sys

from fusionkit.cli.main import main
from fusionkit.store import layout

if __name__ == "__main__":
    layout.CHUNK_BYTES = int(sys.argv.pop(1))
    sys.argv[0] = "fusionkit"
    main()
