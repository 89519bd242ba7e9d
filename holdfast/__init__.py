"""The one name that an installation adds to a Python; `holdfast/product` there holds `api`, `worker` and `shared`."""
