"""Evaluation: what a model is worth on clean and on attacked images, as a record."""
