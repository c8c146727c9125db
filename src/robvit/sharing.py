"""Things to pass on: into a folder or onto the model hub, with a config and a card, and back.

    lora.save_pretrained("my-lora", records=[record])     config.json, lora.safetensors, README.md
    lora.push_to_hub("me/my-lora", records=[record])
    LoRA.from_pretrained("me/my-lora")

The folders are those of huggingface_hub's mixin, which is loaded only here, when it is needed.
"""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from robvit.errors import CannotShare, InputError
from robvit.files import parse_json, read_text, written_whole
from robvit.revisions import settle, settled
from robvit.sharing_card import card_of
from robvit.versions import library_versions

if TYPE_CHECKING:
    from robvit.record import Record

CONFIG, CARD = "config.json", "README.md"
CONFIG_BYTES = 2**22


def check_repository(name: str) -> None:
    """Refuse what can be no repository's name."""
    if not re.fullmatch(r"[\w][\w.-]{0,95}/[\w][\w.-]{0,95}", name):
        raise InputError(f"a repository is OWNER/NAME, got {name[:80]!r}")


class Shareable:
    """What can be saved into a folder with its config and card, pushed to the hub, and opened again.

    `shared_as` is the word for it and the name of its file without the ending.
    """

    shared_as: ClassVar[str]
    ending: ClassVar[str] = ".safetensors"

    def save_pretrained(
        self,
        save_directory: str | Path,
        *,
        records: Sequence[Record] = (),
        card: str = "",
        name: str = "",
        publish_secret: bool = False,
    ) -> None:
        """Write a folder that `from_pretrained` opens: the file itself, config.json and a card, README.md.

        records: of evaluations, from which the card takes threat, number of images, intervals and limits
        card: another card, as Markdown
        name: what the card calls it; the folder's name if left out
        publish_secret: yes, write secrets into a folder that is made to be passed on
        """
        self._check_secret(publish_secret)
        name = name or Path(save_directory).name
        _hub_folder()(self, card or self.card(records, name)).save_pretrained(save_directory)

    def push_to_hub(
        self,
        repo_id: str,
        *,
        records: Sequence[Record] = (),
        card: str = "",
        publish_secret: bool = False,
        private: bool | None = None,
        token: str | None = None,
        commit_message: str = "",
    ) -> str:
        """Write the same folder into a repository of the hub; returns the address of the commit.

        private, token: as huggingface_hub takes them; who is logged in with it needs no token
        """
        self._check_secret(publish_secret)
        made = _hub_folder()(self, card or self.card(records, repo_id))
        message = commit_message or f"{self.shared_as} of robvit"
        try:
            return str(made.push_to_hub(repo_id, private=private, token=token, commit_message=message))
        except Exception as error:  # the client's errors have another base in every version
            raise CannotShare(
                f"the hub did not take {repo_id}: {error}; log in with `hf auth login`, or write a folder"
            ) from error

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path,
        *,
        revision: str | None = None,
        token: str | None = None,
        cache_dir: str | Path | None = None,
        local_files_only: bool = False,
    ) -> Self:
        """What `save_pretrained` wrote into a folder, or `push_to_hub` into a repository."""
        options = {"revision": revision or settled(str(name)) or None, "token": token, "cache_dir": cache_dir}
        try:
            opened = _hub_folder().from_pretrained(
                str(name), wanted=cls, local_files_only=local_files_only, **options
            )
        except (OSError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise CannotShare(f"{name} is no folder, and the hub did not give it: {error}") from error
        held: Self = opened.held
        return held

    def card(self, records: Sequence[Record] = (), name: str = "") -> str:
        """The card in Markdown: what it is, what judged it with threat and intervals, and its limits."""
        return card_of(self.shared_as, self.shared_facts(), records, name, self.warning())

    @abstractmethod
    def shared_facts(self) -> dict[str, Any]:
        """What config.json and the card tell of it; nothing secret."""

    @abstractmethod
    def write_shared(self, path: Path) -> None:
        """Write its file."""

    @classmethod
    @abstractmethod
    def read_shared(cls, path: Path) -> Any:
        """What `write_shared` wrote."""

    def warning(self) -> str:
        """Why it should not be passed on, or nothing."""
        return ""

    def _check_secret(self, publish: bool) -> None:
        if (why := self.warning()) and not publish:
            raise InputError(
                f"{why}; whoever gets them can attack the model as if it had none. If that is meant, say "
                "publish_secret=True (--publish-secret): they stop being secret"
            )


def shared_kind(folder: Path) -> str:
    """What kind of thing of robvit's a folder holds, by its config; nothing if it is none."""
    if not (folder / CONFIG).is_file():
        return ""
    config = parse_json(read_text(folder / CONFIG, "a config", CONFIG_BYTES), folder / CONFIG, "a config")
    return str(config.get("shared_as") or "") if isinstance(config, dict) else ""


def kind_on_hub(name: str) -> str:
    """What kind of thing of robvit's a repository holds, by its config; nothing if that cannot be had."""
    from huggingface_hub import hf_hub_download

    try:
        path = hf_hub_download(name, CONFIG, revision=settled(name) or None)
    except (OSError, ValueError):  # who opens the repository is told why
        return ""
    return shared_kind(Path(path).parent)


def _hub_folder() -> Any:
    """huggingface_hub's mixin for anything shareable."""
    from huggingface_hub import ModelCard, ModelHubMixin, hf_hub_download

    class HubFolder(ModelHubMixin, library_name="robvit"):
        # Set, so that the mixin does not take the thing itself for its config.
        _hub_mixin_config: ClassVar[Any] = {"library_name": "robvit"}  # type: ignore[misc]

        def __init__(self, held: Any, card: str = "") -> None:
            self.held, self._card = held, card

        def _save_pretrained(self, save_directory: Path) -> None:
            held: Shareable = self.held
            held.write_shared(save_directory / (held.shared_as + held.ending))
            config = {"library_name": "robvit", "shared_as": held.shared_as, **held.shared_facts()}
            config["robvit_version"] = library_versions()["robvit"]
            with written_whole(save_directory / CONFIG) as aside:
                aside.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
            (save_directory / CARD).unlink(missing_ok=True)  # the mixin would keep an older one

        @classmethod
        def _from_pretrained(  # type: ignore[override]  # the mixin hands on what it was given
            cls, *, model_id: str, wanted: type[Shareable], **options: Any
        ) -> Any:
            name = wanted.shared_as + wanted.ending
            known: dict[str, Any] = {
                key: options.get(key) for key in ("revision", "cache_dir", "token", "local_files_only")
            }
            folder = Path(model_id)
            if folder.is_dir():
                path = folder / name
            else:
                path = Path(hf_hub_download(model_id, name, **known))
                if not known["revision"]:  # of a branch that moves: the commit it was at is meant from now on
                    commit = path.parent.name
                    settle(model_id, commit, f'from_pretrained("{model_id}", revision="{commit}")')
            if not path.is_file():
                kind = shared_kind(folder) or "nothing of robvit's"
                raise InputError(f"{folder} holds no {name}, which is read here; it has {kind}")
            return cls(wanted.read_shared(path))

        def generate_model_card(self, *args: Any, **kwargs: Any) -> ModelCard:
            return ModelCard(self._card, ignore_metadata_errors=True)

    return HubFolder
