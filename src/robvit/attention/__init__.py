"""Attention: hooks that watch and scale it, whether it saturates, and whether scaling helps an attack."""
