"""Guarantees that no attack can break: patches by dropped tokens, small L2 noise by smoothing."""
