"""A small HTTP service for features and predictions: bounded, batched, and honest when it is full."""
