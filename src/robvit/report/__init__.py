"""Records and pictures for people."""
