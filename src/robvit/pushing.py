"""What a file or a run's folder holds, opened to be passed on; and folders of networks, file by file."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from robvit.backbones.heads import FeatureHead
from robvit.backbones.huggingface.config import CONFIG, PREPROCESSOR, read_object
from robvit.backbones.huggingface.reading import SHARDS, WEIGHTS, shards_in
from robvit.defenses.lora import LoRA
from robvit.defenses.pool import TokenPool
from robvit.defenses.tokens import RobustTokens
from robvit.defenses.tora.modules import Adapters
from robvit.errors import CannotShare, InputError
from robvit.files import folder_written_whole, given_path
from robvit.record import Record
from robvit.report.card import model_card
from robvit.sharing import CARD, Shareable, check_repository
from robvit.sharing_card import card_of, metadata
from robvit.tensor_files import kind_of, read_facts

KINDS: dict[str, Any] = {one.shared_as: one for one in (LoRA, FeatureHead, RobustTokens, TokenPool, Adapters)}
# What a run leaves, in the order in which it is looked for; its state and its secret are never passed on.
RESULTS = ("lora", "pool", "tokens", "adapters", "head")


def push(
    result: str | Path,
    repo: str,
    *,
    folder: str | Path | None = None,
    records: Sequence[Record] = (),
    private: bool = False,
    publish_secret: bool = False,
    force: bool = False,
) -> str:
    """Pass on a result with a config and a card from records; where it went.

    result: a LoRA, head, token, adapter or record file, the folder of a run that left one, or a folder of
        `robvit bake --layout huggingface`
    repo: OWNER/NAME on the hub, and in the card
    folder: written in place of the hub; no network is used
    records: what the card tells; the run's own if left out
    private: whether a new repository is for its owner only
    publish_secret: whether secret tokens may go out, which ends their secrecy
    force: whether a folder that holds something may be replaced
    """
    check_repository(repo)
    place, to = given_path(result), None if folder is None else Path(folder)
    if to is not None and not force and to.exists() and not (to.is_dir() and not any(to.iterdir())):
        raise InputError(f"{to} is not empty; choose another --folder, or replace what is there with --force")
    if not place.exists():
        raise InputError(f"nothing at {result}; give the file or folder of a result")
    if not records and (own := place / "record.json").is_file():
        records = [Record.load(own)]
    held = opened_result(place)
    if held is None:  # a network's folder, which is passed on file by file
        return push_folder(place, repo, records, to=to, private=private, publish_secret=publish_secret)
    card = _card(held, repo, records)
    if to is None:
        return held.push_to_hub(
            repo, records=records, card=card, private=private or None, publish_secret=publish_secret
        )
    held.save_pretrained(to, records=records, card=card, name=repo, publish_secret=publish_secret)
    return str(to)


def _card(held: Shareable, repo: str, records: Sequence[Record]) -> str:
    """A tuning has a card of its own; others have the one that their kind makes."""
    tunings = sum(one.kind == "robustify" and "settings" in one.model for one in records)
    if tunings != 1 or held.shared_as != "lora":
        return ""
    return f"{metadata('lora')}\n\n{model_card(records, name=repo)}"


def opened_result(place: Path) -> Shareable | None:
    """The result in a file, or in a run's folder; nothing for the folder of a network."""
    if place.is_dir():
        found = [place / f"{name}.safetensors" for name in RESULTS]
        path = next((one for one in found if one.is_file()), None)
        weights = [name for name in (WEIGHTS, SHARDS) if (place / name).is_file()]
        if path is None and weights:
            if (place / CONFIG).is_file():
                return None
            raise InputError(
                f"{place} holds weights without {CONFIG}, which nobody could open; write a folder with both "
                f"by `robvit export {place / weights[0]} --format huggingface` and push that"
            )
        path = path or (place / "record.json" if (place / "record.json").is_file() else None)
        if path is None:
            raise InputError(
                f"{place} holds no result of a run ({', '.join(RESULTS)}, record.json) and no network with "
                f"{CONFIG}; weights go by `robvit bake --layout huggingface` first"
            )
        place = path
    if place.suffix == ".json":
        return Record.load(place)
    kind = KINDS.get(kind_of(read_facts(place, "a result")))
    if kind is None:
        raise InputError(
            f"{place} is no LoRA, head, token or adapter file of robvit's; a model's checkpoint goes by "
            "`robvit bake --layout huggingface` first"
        )
    result: Shareable = kind.read_shared(place)
    return result


def push_folder(
    folder: Path,
    repo: str,
    records: Sequence[Record],
    *,
    to: Path | None,
    private: bool,
    publish_secret: bool,
) -> str:
    """Pass on config, weights and preprocessor of a network's folder with a card, and nothing else."""
    names = [WEIGHTS] if (folder / WEIGHTS).is_file() else [SHARDS, *shards_in(folder)]
    facts = read_facts(folder / names[-1], "a file of weights")
    if "warning" in facts and not publish_secret:
        raise InputError(
            f"{folder}: {facts['warning']}. If it is meant to be passed on, say --publish-secret: they stop "
            "being secret"
        )
    config = read_object(folder / CONFIG)
    shown: dict[str, Any] = {key: config[key] for key in ("architectures", "model_type") if key in config}
    shown |= {key: facts[key] for key in ("fingerprint", "img_size", "resize", "classes") if key in facts}
    card = card_of("model", shown, records, repo)
    names += [name for name in (CONFIG, PREPROCESSOR) if (folder / name).is_file()]
    if to is not None:
        if to.resolve() == folder.resolve():
            raise InputError("--folder must be another folder than the one that is passed on")
        with folder_written_whole(to) as aside:
            _gather(folder, names, card, aside)
        return str(to)
    from huggingface_hub import HfApi

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as room:
        _gather(folder, names, card, Path(room))
        try:
            api = HfApi()
            api.create_repo(repo, private=private or None, exist_ok=True)
            return str(api.upload_folder(repo_id=repo, folder_path=room, commit_message="A model of robvit"))
        except Exception as error:  # the client's errors have another base in every version
            raise CannotShare(
                f"the hub did not take {repo}: {error}; log in with `hf auth login`, or give --folder"
            ) from error


def _gather(folder: Path, names: Sequence[str], card: str, aside: Path) -> None:
    for name in names:
        shutil.copyfile(folder / name, aside / name)
    (aside / CARD).write_text(card, encoding="utf-8")
