"""The version of this package, as its metadata says."""

from importlib.metadata import PackageNotFoundError, version


def _installed_version() -> str:
    try:
        return version("holdfast")
    except PackageNotFoundError:
        # Run from a checkout that was never installed.
        return "0+checkout"


VERSION = _installed_version()
