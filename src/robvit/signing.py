"""Signatures of records with a key of the user's: ed25519, in a file beside the record.

What is signed is the record's content in one canonical form, so that spaces and the order of keys do not
matter and every value does.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from robvit.errors import InputError, Unsupported
from robvit.files import given_path, parse_json, read_text, write_json, written_whole

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

FORMAT = "robvit-signature-1"
KEY_BYTES = 10_000


def signature_path(record: str | Path) -> Path:
    """Where the signature of a record lies."""
    return Path(record).with_name(Path(record).name + ".sig")


def canonical(record: str | Path) -> bytes:
    """The content of a record in the one form that is signed."""
    content = parse_json(read_text(record, "a record"), record, "a record")
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode("ascii")


def new_key(path: str | Path) -> None:
    """Write a new private key, for the owner's eyes only, and its public half beside it as .pub.

    Neither replaces a file.
    """
    for place in (path, f"{path}.pub"):
        if given_path(place).exists():
            raise InputError(f"{place} is already there, and signatures may need it; choose another name")
    _library()
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    public = key.public_key().public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo)
    with written_whole(path, mode=0o600) as aside:
        aside.write_bytes(private)
    with written_whole(f"{path}.pub") as aside:
        aside.write_bytes(public)


def sign(record: str | Path, key: str | Path) -> Path:
    """Sign a record with a private key; the signature lies beside it."""
    signature = _private(key).sign(canonical(record))
    place = signature_path(record)
    write_json(place, {"format": FORMAT, "algorithm": "ed25519", "signature": signature.hex()})
    return place


def signature_flaw(record: str | Path, key: str | Path) -> str:
    """Why a record's signature is not that of the public key, or nothing."""
    public = _public(key)
    from cryptography.exceptions import InvalidSignature

    place = signature_path(record)
    if not place.exists():
        return f"there is no {place.name} beside it"
    held = parse_json(read_text(place, "a signature"), place, "a signature")
    try:
        assert held["format"] == FORMAT
        signature = bytes.fromhex(held["signature"])
    except (AssertionError, KeyError, TypeError, ValueError):
        return f"{place.name} holds no signature of robvit's"
    try:
        public.verify(signature, canonical(record))
    except InvalidSignature:
        return "another key signed it, or it was changed afterwards"
    return ""


def _library() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise Unsupported("signing needs cryptography; install it with: pip install 'robvit[sign]'") from None


def _private(path: str | Path) -> Ed25519PrivateKey:
    _library()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    key = _read(path, lambda text: load_pem_private_key(text, password=None))
    if not isinstance(key, Ed25519PrivateKey):
        command = f"robvit sign --new-key {shlex.quote(str(path))}"
        raise InputError(f"{path} must be an ed25519 private key; make one: {command}")
    return key


def _public(path: str | Path) -> Ed25519PublicKey:
    _library()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    key = _read(path, load_pem_public_key)
    if not isinstance(key, Ed25519PublicKey):
        raise InputError(f"{path} must be an ed25519 public key, such as the .pub that --new-key writes")
    return key


def _read(path: str | Path, load: Any) -> Any:
    """A key from PEM; its content is never part of an error."""
    text = read_text(path, "a key", KEY_BYTES).encode()
    try:
        return load(text)
    except (TypeError, ValueError):
        raise InputError(f"{path} is not a key in PEM without a password that can be read") from None
