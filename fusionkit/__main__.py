"""``python -m fusionkit``."""

from fusionkit.cli.main import main

if __name__ == "__main__":
    main()
