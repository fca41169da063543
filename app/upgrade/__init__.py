"""What changes for a proposal between two vLLM versions."""
