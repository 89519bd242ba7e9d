"""The one name that an installation adds to a Python; the packages of the product are in `holdfast/product` there."""
