"""Studies of the thesis on adversarially training XCiT (Debenedetti, 2022)."""
