"""Code that runs inside vLLM's environment; nothing here is imported by the project."""
