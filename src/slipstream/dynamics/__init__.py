"""How bodies move."""
