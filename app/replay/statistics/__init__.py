"""Whether sampled ids look drawn from the returned rows, where the draw cannot be repeated."""
