"""The rules of the configuration gate, a module an area."""
