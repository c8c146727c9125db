"""Studies of Robustness Tokens (Pulfer et al., ECCV 2024)."""
