"""Verdicts in the formats that people and tools read; one function a format."""
