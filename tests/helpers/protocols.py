"""Protocols that take a second."""

from __future__ import annotations

from typing import Any

SHORT_PROTOCOL: dict[str, Any] = {
    "name": "short@1",
    "about": "for a test",
    "threat": {"norm": "linf", "eps": "8/255"},
    "attacks": [
        {"attack": "pgd", "settings": {"steps": 2}},
        {"attack": "square", "settings": {"steps": 8}},
    ],
}
