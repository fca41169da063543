"""Whether the running backend is the one that was declared."""
