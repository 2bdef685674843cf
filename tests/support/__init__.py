"""Oracles that tests compare against."""
