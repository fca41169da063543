"""The engine's own random draw, bit for bit, per generation of the engine."""
