"""Starts Holdfast, even if this machine has other packages named `api`, `cli`, `worker` or `shared`.

In a checkout these packages lie beside this one, and the sources import them by these names. An installation moves
them into this package (setup.py), so that they hide no other package; this module puts their folder first on the path.
"""

import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_INSTALLED = _HERE / "product"

sys.path.insert(0, str(_INSTALLED if _INSTALLED.is_dir() else _HERE.parent))

from cli.main import main  # noqa: E402 - it is found by the line above

if __name__ == "__main__":
    main()
