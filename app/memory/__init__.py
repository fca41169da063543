"""What a configuration needs of a GPU's memory, as an estimate before one is allocated."""
