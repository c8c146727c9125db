"""Training whole networks: recipes, losses, one loop."""
