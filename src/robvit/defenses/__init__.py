"""What hardens a model."""
