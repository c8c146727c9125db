"""Studies of adaptive attention scaling (Jain and Dutta, CVPR 2024)."""
