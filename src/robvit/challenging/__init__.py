"""Test-time defences, and attackers who know them."""
