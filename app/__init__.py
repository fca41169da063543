"""vllm-admission: configuration, request and replay gates in front of vLLM."""
