"""Which state of a repository on the model hub is meant: a commit, never a branch that moves.

A name may say it, as NAME@COMMIT. Else robvit's own pin holds; and where there is none, the first commit that
this machine got is told, kept in revisions.json of robvit's cache, and meant from then on.
"""

from __future__ import annotations

import re
from pathlib import Path

from robvit.errors import CannotWrite, InputError
from robvit.fetch import tell
from robvit.files import cache_dir, parse_json, read_text, write_json
from robvit.locks import one_at_a_time

COMMIT = re.compile(r"[0-9a-f]{40}")

# Only commits that several independent projects have published as theirs of this repository.
PINNED = {
    "timm/vit_small_patch14_dinov2.lvd142m": "4610ca143709d58a633b6397a74412c2c3842454",
    "timm/vit_base_patch14_dinov2.lvd142m": "4685c99dabffe5affac90bd99dbffd25801ae58d",
    "timm/vit_large_patch14_dinov2.lvd142m": "4741e1cafbf45415e77074bb0cb42dba76c8684a",
    "timm/vit_small_patch14_reg4_dinov2.lvd142m": "c04b5193082a8d5b0c4856c7937384a48136c5de",
    "timm/vit_large_patch14_reg4_dinov2.lvd142m": "f3c408e77602bb412aa65fb03dfa0d5f95cb3832",
    "timm/vit_base_patch16_clip_224.openai": "977e3dd0ec55ab8da155f2fbeb6b5f54948b6e3d",
}


def check_commit(text: str, whole: str) -> str:
    """The commit, if it is one; a branch or a tag can move, and is refused."""
    if not COMMIT.fullmatch(text):
        raise InputError(
            f"expected a commit of 40 hexadecimal digits as the revision in {whole!r}, got {text!r}; "
            "branches and tags move; the hub's page of the repository lists its commits"
        )
    return text


def split_name(name: str) -> tuple[str, str]:
    """A model's name and the commit behind its @, empty where none is given."""
    plain, at, commit = name.rpartition("@")
    return (plain, check_commit(commit, name)) if at else (name, "")


def settled(repository: str) -> str:
    """The commit that is meant by a repository's bare name, or nothing if this machine never had one."""
    return PINNED.get(repository) or _kept().get(repository, "")


def settle(repository: str, commit: str, how: str) -> None:
    """Mean this commit from now on, and say so; `how` is the name that asks for it anywhere."""
    if settled(repository) or not COMMIT.fullmatch(commit):
        return
    path = _path()
    try:
        with one_at_a_time(path):
            write_json(path, {repository: commit} | _kept())
        kept = f"kept in {path} for the next time"
    except CannotWrite as error:
        kept = f"not kept, so another commit may come the next time ({error})"
    tell(
        f"{repository}: no revision is pinned, its main branch was at {commit}; {kept}; "
        f"elsewhere ask for {how}"
    )


def _path() -> Path:
    return cache_dir("revisions.json")


def _kept() -> dict[str, str]:
    """Repositories and the commits that this machine got first."""
    if not (path := _path()).is_file():
        return {}
    found = parse_json(read_text(path, "a table of revisions"), path, "a table of revisions")
    if not isinstance(found, dict) or not all(
        isinstance(one, str) and COMMIT.fullmatch(one) for one in found.values()
    ):
        raise InputError(f"{path} is no table of repositories and commits; remove it, then fetch again")
    return found
