"""Build the documentation: `python scripts/build_docs.py site`, or `make docs`.

docs/ is plain Markdown. What would go stale is made here from the package itself: the Python reference from
docstrings, a page for each recipe, one for the papers' studies, one for the commands. Sphinx puts all of it
together without the network; a warning, such as a link that leads nowhere, is an error.
"""

from __future__ import annotations

import inspect
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Sequence
from importlib import import_module, resources
from itertools import groupby
from pathlib import Path
from types import FunctionType
from typing import Any

import typer
from sphinx.application import Sphinx

from robvit.attacks import ATTACKS
from robvit.cli import app
from robvit.data.catalog import DATASETS
from robvit.record import PARTS
from robvit.studies import STUDIES
from robvit.training.recipe import load_recipe, names

DOCS = Path(__file__).parent.parent / "docs"

# Every page below docs/, in the order of the navigation, with its name there.
NAVIGATION = {
    "Tutorials": {
        "tutorials/first-look": "A first look",
        "tutorials/deploy": "Deploy a frozen ViT",
        "tutorials/research": "Train and compare",
        "tutorials/review": "Review a model",
        "tutorials/black-box": "Judge a black box",
    },
    "Guides": {
        "threat-model": "Threat models",
        "robustness-tokens": "Robustness tokens",
        "white-box": "White-box robustness",
        "attacks": "Attacks",
        "aas": "Attention scaling",
        "training": "Training",
        "xcit": "The XCiT thesis",
        "tora": "TORA adapters",
        "evaluation": "Evaluation",
        "certificates": "Certificates",
        "doctor": "The doctor",
        "explain": "Explanations",
        "deployment": "Deployment",
        "huggingface": "Hugging Face",
        "app": "The playground",
        "robust-runs": "Interruptions and untrusted files",
        "security": "Security",
    },
    "Extending": {
        "extending/attack": "Add an attack",
        "extending/backbone": "Add a backbone",
        "extending/recipe": "Add a recipe",
    },
    "Reference": {
        "reference/python": "Python",
        "reference/commands": "Commands",
        "reference/attacks": "Attacks",
        "reference/data": "Data",
        "reference/recipes": "Recipes",
        "reference/studies": "Studies",
    },
}

# Section of the Python reference: what stands in it besides a module's own public names.
PYTHON = {
    "The door": ("robvit", ["robvit.defenses.recipe.TokenRecipe"]),
    "Records": (
        "",
        [
            "robvit.record.Record",
            *(f"robvit.record.{p.__name__}" for p in PARTS.values()),
            "robvit.evaluation.compare.compare",
            "robvit.evaluation.seeds.over_seeds",
            "robvit.evaluation.seeds.compare_seeds",
            "robvit.evaluation.protocol.Protocol",
        ],
    ),
    "Attacks": ("robvit.attacks", []),
    "Data": ("robvit.data", []),
    "Backbones": (
        "",
        [
            "robvit.backbones.families.family",
            "robvit.backbones.families.Family",
            "robvit.attention.hooks.watch",
            "robvit.attention.scaling.scaled",
            "robvit.attention.gradients.attention_cut",
            "robvit.attention.gradients.token_gradients_levelled",
        ],
    ),
    "Training": (
        "robvit.training",
        ["robvit.training.recipe.Inner", "robvit.data.augment.Augment"],
    ),
    "Explanations": (
        "",
        [
            *(
                f"robvit.explanation.figures.{name}"
                for name in (
                    "activations.largest_activations",
                    "attention.attention_by_block",
                    "attention.rollout",
                    "attending.group_shares",
                    "gaps.gaps",
                    "features.FeatureColours",
                    "landscape.loss_landscape",
                    "accumulation.accumulate_gradient",
                    "gates.gate_maps",
                )
            ),
            "robvit.drawing.perturbation.grey_perturbation",
            "robvit.drawing.images.heat",
            "robvit.drawing.images.coloured_mask",
        ],
    ),
    "Errors": (
        "",
        [
            f"robvit.errors.{name}"
            for name in (
                "InputError",
                "UnknownName",
                "Unsupported",
                "WrongBackbone",
                "WeightsUnavailable",
                "DataError",
                "BrokenAttack",
            )
        ],
    ),
}

SETTINGS: dict[str, Any] = {
    "project": "robvit",
    "html_title": "robvit",
    "html_theme": "furo",
    "html_show_sphinx": False,
    "html_show_copyright": False,
    "html_copy_source": False,
    "html_use_index": False,  # the search finds names
    "html_css_files": ["site.css"],
    "html_js_files": ["site.js"],
    "html_favicon": "_static/icon.svg",
    "html_static_path": ["_static"],
    "extensions": ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"],
    "myst_heading_anchors": 3,
    "highlight_language": "bash",
    "pygments_style": "a11y-light",
    "pygments_dark_style": "a11y-dark",
    "default_role": "code",  # docstrings say `name`, as in Markdown
    "autodoc_member_order": "bysource",
    "autodoc_typehints_format": "short",
    "autodoc_preserve_defaults": True,
    "smartquotes": False,  # an option's two dashes are no long one
    "python_use_unqualified_type_names": True,
    "add_module_names": False,
    "toc_object_entries_show_parents": "hide",
    "maximum_signature_line_length": 90,
}

PAGE = re.compile(r"docs/([\w-]+)\.md")
# A line of a parameter list: one name or several, a colon, what it is.
PARAMETER = re.compile(r"^([a-z_0-9]+(?:, [a-z_0-9]+)*): (.+)$")
TITLED = re.compile(r'^```(\w+) title="([^"]+)"$', flags=re.MULTILINE)


def build(out: Path) -> None:
    """The whole site into a folder; ends the program if Sphinx warns of anything."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "docs"
        shutil.copytree(DOCS, source)
        for place, text in made_pages().items():
            (source / place).parent.mkdir(parents=True, exist_ok=True)
            (source / place).write_text(text, encoding="utf-8")
        for page in source.rglob("*.md"):
            page.write_text(TITLED.sub(r"```{code-block} \1\n:caption: \2", page.read_text("utf-8")), "utf-8")
        with (source / "index.md").open("a", encoding="utf-8") as index:
            index.write(_navigation())
        sphinx = Sphinx(
            source,
            source,
            out,
            Path(folder) / "trees",
            "html",
            status=None,
            warning=sys.stderr,
            warningiserror=True,
        )
        sphinx.connect("autodoc-process-docstring", _listed)
        sphinx.build(force_all=True)
        if sphinx.statuscode:
            sys.exit("the documentation has warnings, see above; none are accepted")


def _listed(_app: Any, _what: str, _name: str, _object: Any, _options: Any, lines: list[str]) -> None:
    """Turn a docstring's list of parameters, a line `name: text` each, into a list of the page."""
    made: list[str] = []
    inside = False
    for line in lines:
        found = PARAMETER.match(line)
        if found and (inside or (made and not made[-1])):
            made += [f"- **{found[1]}**: {found[2]}"]
            inside = True
        elif inside and line.startswith("    "):
            made.append(f"  {line.strip()}")
        else:
            if inside and line:
                made.append("")
            inside = False
            made.append(line)
    lines[:] = made


def made_pages() -> dict[str, str]:
    """The pages that nobody writes by hand, by their place below docs/."""
    pages = {
        "conf.py": "".join(f"{name} = {value!r}\n" for name, value in SETTINGS.items()),
        "reference/python.md": _python(),
        "reference/attacks.md": _attacks(),
        "reference/data.md": _data(),
        "reference/recipes.md": _recipes(),
        "reference/studies.md": _studies(),
        "reference/commands.md": _commands(),
    }
    return pages | {f"reference/recipes/{name}.md": _recipe(name) for name in names()}


def _navigation() -> str:
    trees = []
    for caption, pages in NAVIGATION.items():
        lines = "\n".join(f"{title} <{page}>" for page, title in pages.items())
        trees.append(f"```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{lines}\n```")
    return "\n" + "\n\n".join(trees) + "\n"


def public_names() -> dict[str, list[str]]:
    """Section of the Python reference: the full names in it."""
    sections: dict[str, list[str]] = {}
    shown: set[int] = set()  # a name that several modules export stands where it comes first
    for title, (module, more) in PYTHON.items():
        loaded = import_module(module) if module else None
        own = [f"{module}.{name}" for name in getattr(loaded, "__all__", [])]
        own.sort(key=lambda name: inspect.isclass(_object(name)))  # what is called before what it takes
        new = [name for name in [*own, *more] if callable(_object(name)) and id(_object(name)) not in shown]
        shown |= {id(_object(name)) for name in new}
        sections[title] = new  # no registries: they are not callable
    return sections


def _object(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(import_module(module), attribute)


def _python() -> str:
    lines = [
        "# Python",
        "",
        "Shapes: B batch, N patches, P prefix tokens, R extra tokens, T all tokens, D width, K classes, "
        "H rows, W columns, L layers. Pixels are floats in [0,1] everywhere. Names are looked up when "
        "they are first used, so `import robvit` is quick.",
    ]
    for title, members in public_names().items():
        described = "\n\n".join(_directive(name) for name in members)
        lines += ["", f"## {title}", "", f"```{{eval-rst}}\n{described}\n```"]
    return "\n".join(lines) + "\n"


def _directive(name: str) -> str:
    thing = _object(name)
    if inspect.ismodule(thing):  # robvit.evaluate and robvit.doctor are packages that can be called
        name = f"{name}.run.{name.rpartition('.')[2]}"
        thing = _object(name)
    if not inspect.isclass(thing):
        return f".. autofunction:: {name}"
    shown = (property, classmethod, FunctionType)
    own = [
        member
        for member, value in vars(thing).items()
        if isinstance(value, shown) and not member.startswith(("_", "model_"))
    ]
    return f".. autoclass:: {name}" + (f"\n   :members: {', '.join(own)}" if own else "")


def _linked(text: str, up: str) -> str:
    """Mentions of our own pages as links."""
    return PAGE.sub(rf"[\1]({up}\1.md)", text)


def _recipes() -> str:
    lines = [
        "# Recipes",
        "",
        "A recipe is a loss plus numbers. Each has a page with all its settings and what to expect; "
        "[Training](../training.md) tells how a training runs and what was measured.",
        "",
        "| recipe | what it is | takes |",
        "|---|---|---|",
    ]
    for name in names():
        recipe = load_recipe(name)
        about, takes = (_linked(_cell(text), "../") for text in (recipe.about, recipe.takes))
        lines.append(f"| [`{name}`](recipes/{name}.md) | {about} | {takes} |")
    inside = "\n".join(f"recipes/{name}" for name in names())
    return "\n".join(lines) + f"\n\n```{{toctree}}\n:hidden:\n\n{inside}\n```\n"


def _recipe(name: str) -> str:
    recipe = load_recipe(name)
    written = resources.files("robvit.training").joinpath(f"recipes/{name}.yaml").read_text("utf-8")
    own = recipe.model_dump(mode="json", exclude={"about", "takes", "expects", "inner", "augment"})
    parts = {"": own, "inner.": recipe.inner.model_dump(), "augment.": recipe.augment.model_dump()}
    settings = {head + key: value for head, part in parts.items() for key, value in part.items()}
    rows = "\n".join(f"| `{key}` | {_value(value)} |" for key, value in settings.items())
    return f"""# {name}

{_linked(recipe.about, "../../")}

**Takes:** {_linked(recipe.takes, "../../")}

**Expect:** {_linked(recipe.expects, "../../")}

    robvit train {name} --dry-run

## The file

```yaml
{written.strip()}
```

## Every setting, resolved

Each can be set on the command line: `--set KEY=VALUE`. Budgets are in pixels, `inner.step` in units of the
budget.

| key | value |
|---|---|
{rows}
"""


def _listing(title: str, about: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A page of one table."""
    table = [columns, ["---"] * len(columns), *rows]
    return "\n".join([f"# {title}", "", about, "", *(f"| {' | '.join(row)} |" for row in table), ""])


def _attacks() -> str:
    rows = []
    for entry in ATTACKS:
        info = entry.info
        needs = "answers" if not info.gradients else "gradients" if info.task == "classes" else info.task
        settings = ", ".join(f"`{k}={_plain(k, v)}`" for k, v in info.defaults.items())
        does = _cell(" ".join((inspect.getdoc(entry.value) or "").split()).partition(". ")[0])
        rows.append([f"`{entry.name}`", does, ", ".join(info.norms), needs, info.paper, settings])
    about = (
        "`robvit attack MODEL DATA --attack NAME`, `robvit.attacks.run(NAME, ...)` and protocols take these. "
        "Settings, with their defaults, are given with `--set`; [what to take when](../attacks.md)."
    )
    return _listing("Attacks", about, ["attack", "what it does", "norms", "needs", "paper", "settings"], rows)


def _data() -> str:
    rows = []
    for entry in DATASETS:
        info = entry.info
        taken = inspect.signature(entry.value).parameters.values()
        options = ", ".join(f"`{one.name}`" for one in taken if one.kind is one.KEYWORD_ONLY)
        rows.append([f"`{info.example or entry.name}`", _cell(info.about), options, ", ".join(info.splits)])
    about = (
        "Commands take these as DATA, `robvit.open_data` as its first argument; options follow a question "
        "mark. Images become square by `--resize squash`, the default, or `crop`, and are floats in [0,1] "
        "from there on. A folder without splits is divided: four fifths are `learn`, the rest is `held-out`."
    )
    return _listing("Data", about, ["ask for", "what it is", "options", "splits"], rows)


def _studies() -> str:
    lines = [
        "# Studies",
        "",
        "`robvit reproduce STUDY` repeats a table or figure of a paper and prints ours beside theirs. Every "
        "study takes `--model`, `--data` and `--images`; its own settings, with their defaults, are given "
        "with `--set`.",
    ]
    entries = sorted(STUDIES, key=lambda entry: (entry.info.paper, entry.name))
    for paper, studies in groupby(entries, key=lambda entry: entry.info.paper):
        lines += ["", f"## {paper}", "", "| study | what it repeats | settings |", "|---|---|---|"]
        for entry in studies:
            settings = ", ".join(f"`{k}={_plain(k, v)}`" for k, v in entry.info.defaults.items())
            lines.append(f"| `{entry.name}` | {_cell(entry.info.title)} | {settings} |")
    return "\n".join(lines) + "\n"


def _commands() -> str:
    lines = ["# Commands", "", "What `robvit COMMAND --help` says, on one page."]
    for path, command in commands(typer.main.get_command(app)):
        lines += ["", f"## robvit {path}", "", inspect.cleandoc(command.help or "")]
        shown = [p for p in command.params if not getattr(p, "hidden", False) and p.name != "help"]
        if shown:
            lines += ["", "| | | default |", "|---|---|---|"]
        for parameter in sorted(shown, key=lambda p: p.param_type_name):
            is_option = parameter.param_type_name == "option"
            name = parameter.opts[0] if is_option else parameter.metavar or parameter.name.upper()
            lines.append(f"| `{name}` | {_cell(parameter.help or '')} | {_default(parameter)} |")
    return "\n".join(lines) + "\n"


def commands(group: Any, path: str = "") -> list[tuple[str, Any]]:
    """Every command that runs, with the words that call it."""
    if not hasattr(group, "commands"):
        return [(path, group)]
    found = []
    for name, command in group.commands.items():
        word = "RECIPE" if (path, name) == ("train", "recipe") else name
        found += commands(command, f"{path} {word}".strip())
    return found


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    value = parameter.default
    return "" if value is None or value is False or callable(value) else f"`{value}`"


def _cell(text: str) -> str:
    """One line, with no bar that would end a table's cell."""
    return " ".join(text.split()).replace("|", "\\|")


def _plain(name: str, value: object) -> str:
    if name == "eps" and isinstance(value, float):
        return f"{value * 255:g}/255"
    return _cell(str(list(value) if isinstance(value, tuple) else value).replace(" ", ""))


def _value(value: object) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return "" if value is None else f"`{_cell(text)}`"


if __name__ == "__main__":
    build(Path(sys.argv[1] if len(sys.argv) > 1 else "site").resolve())
