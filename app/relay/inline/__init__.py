"""Replaying responses while they are relayed: a copy is kept, and judged in another process."""
