"""The end-to-end check: seeded generations are sent to a backend, and what returns is replayed."""
