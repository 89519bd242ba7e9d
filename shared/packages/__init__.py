"""Tools' packages: environments on this machine's disk, built from the operator's index."""
