"""Harden Vision Transformers against adversarial examples, attack them, and tell the truth about it.

Names are looked up when they are first used, so `import robvit` costs nothing.
"""
