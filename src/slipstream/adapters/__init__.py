"""Between other libraries' environments and ours."""
