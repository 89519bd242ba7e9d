"""Starts Holdfast, whatever else is called `api`, `cli`, `worker` or `shared` on this machine.

In a checkout these packages lie beside this one, and the sources import them by these names. Installed, they are moved
into this package (setup.py), so that they are in nobody's way; here their folder becomes the first that is searched.
"""

import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_INSTALLED = _HERE / "product"

sys.path.insert(0, str(_INSTALLED if _INSTALLED.is_dir() else _HERE.parent))

from cli.main import main  # noqa: E402 - it is found by the line above

if __name__ == "__main__":
    main()
