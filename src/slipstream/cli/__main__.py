"""`python -m slipstream.cli`."""

from .main import entry

entry()
