"""Real vLLM on a CPU: a server with sampling masks, and the verdict on a configuration."""
