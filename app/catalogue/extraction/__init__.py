"""Reading the facts of a catalogue out of an installed vLLM.

Nothing here imports a dependency of this project: it runs in vLLM's own environment, with
vLLM and the standard library alone.
"""
