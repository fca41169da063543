"""The wire format of vLLM's HTTP routes, per version."""
