"""Studies of TORA-ViT (Li and Xu, CVPR 2023)."""
