"""Packages that add systems."""
