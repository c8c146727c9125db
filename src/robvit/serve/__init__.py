"""A small HTTP service for features and predictions: bounded, batched, 429 when its queue is full."""
