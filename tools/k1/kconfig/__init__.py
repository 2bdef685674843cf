"""Kconfig settings, checked against the tree they are for before anything is built."""
