"""Explanations as figures: what a model attends to, what an attack changes, and what hardening restores."""
