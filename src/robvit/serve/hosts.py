"""Which names a server answers to: a page elsewhere that points its own name here is refused.

Such a page can make a visitor's browser ask this machine, and read the answer, but only under its own name.
So an address in numbers is no danger, and names are those of this machine and those that were allowed.
"""

from __future__ import annotations

import ipaddress
from contextlib import suppress

LOOPBACK_NAMES = ("localhost", "localhost.")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host's address."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host.lower() in LOOPBACK_NAMES


def host_name(header: str) -> str:
    """The name in a Host header, without its port."""
    if header.startswith("["):
        return header.partition("]")[0][1:]
    return header.partition(":")[0].lower()


def answers_to(header: str, listening: str, allowed: tuple[str, ...] = ()) -> bool:
    """Whether a server that listens at an address answers to a Host header."""
    name = host_name(header)
    if is_loopback(name) or name in (listening.lower(), *allowed):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return not is_loopback(listening)
