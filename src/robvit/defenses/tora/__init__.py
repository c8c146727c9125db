"""TORA-ViT: accuracy and robustness adapters with gated fusion on a frozen ViT."""
