"""The only name that an installation adds to a Python. The product's packages are in `holdfast/product` there."""
