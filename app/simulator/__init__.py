"""The simulated vLLM backend: a toy model behind the wire format of a chosen vLLM version."""
