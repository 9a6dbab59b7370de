"""Slipstream trains robot policies where the data already is."""

__version__ = "0.1.0"
