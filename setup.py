"""Which packages an installation has. All else about Holdfast is in pyproject.toml.

A wheel has one top-level name: `api`, `cli`, `worker` and `shared` go into `holdfast/product`, where the launcher looks
for them. An editable installation (`make dev`) has them where they are.
"""

import sys

from setuptools import find_packages, setup

PRODUCT = ("api", "cli", "worker", "shared")

found = find_packages(include=[pattern for name in PRODUCT for pattern in (name, f"{name}.*")])
public = find_packages(include=["holdfast", "holdfast.*"])
if "editable_wheel" in sys.argv:
    setup(packages=[*public, *found])
else:
    setup(
        packages=[*public, *(f"holdfast.product.{name}" for name in found)],
        package_dir={f"holdfast.product.{name}": name for name in PRODUCT},
    )
