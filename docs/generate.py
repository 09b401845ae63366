"""Pages of the site that nobody writes by hand: the front page from the README, the reference from
the code.

MkDocs calls `on_files` before it reads any page. No page that is made here is a file of the
repository.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import headgate
from headgate import cli
from headgate.config import clusterfile, jobfile, planfile
from headgate.model.declarations import declared_fields
from headgate.studies import studyfile

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).parents[1]
FROM_THE_ROOT = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
    "CHANGELOG.md": "changelog.md",
}
# A link to a file of the repository that is no page, from below docs/ or from the root.
OF_THE_REPOSITORY = re.compile(r"\]\((?:\.\./)?((?:src|tests|examples|benchmarks)/[^)#\s]+)")

# Contracts that plug-ins implement, and what plans are searched with.
MORE = (
    "headgate.planning.planner.Planner",
    "headgate.policies.base.Policy",
    "headgate.engines.base.Engine",
    "headgate.isolation.base.Isolation",
    "headgate.sampling.base.Sampler",
)
FRAMEWORKS = ("headgate.torch", "headgate.keras", "headgate.jax")
ALIKE = ("epochs", "mean", "agree", "rank", "is_main")
"""Calls that all of them have, from one class."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is generated."""
    from mkdocs.structure.files import File  # the pages themselves are made without MkDocs

    for name, page in FROM_THE_ROOT.items():
        files.append(File.generated(config, page, content=of_the_root((ROOT / name).read_text())))
    files.append(File.generated(config, "reference/commands.md", content=commands()))
    files.append(File.generated(config, "reference/schemas.md", content=schemas()))
    files.append(File.generated(config, "reference/python.md", content=python()))
    pages = [*(ROOT / "docs").glob("*.md"), *(ROOT / name for name in FROM_THE_ROOT)]
    linked = (OF_THE_REPOSITORY.findall(page.read_text()) for page in pages)
    for name in sorted({name for names in linked for name in names}):
        files.append(File.generated(config, name, content=(ROOT / name).read_text()))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """A page with its links into the repository as links within the site."""
    for name, page in FROM_THE_ROOT.items():
        markdown = markdown.replace(f"](../{name}", f"]({page}")
    return OF_THE_REPOSITORY.sub(r"](\1", markdown)


def of_the_root(text: str) -> str:
    """A page of the repository's root, with the links that it has as a page of the site."""
    for name, page in FROM_THE_ROOT.items():
        text = text.replace(f"]({name}", f"]({page}")
    return text.replace("](docs/", "](")


def commands() -> str:
    """What each verb says with `--help`."""
    text = (
        "# Every option\n\nGenerated from the commands themselves: what `--help` says. "
        "[Commands](../cli.md) says what "
        "each verb is for, and has the exit codes.\n"
    )
    for verb in cli.VERBS:
        text += helped(
            importlib.import_module(f"headgate.cli.{verb}").command, f"headgate {verb}", "##"
        )
    return text


def helped(command: click.Command, name: str, heading: str) -> str:
    """The help of a command and of those below it, each under a heading."""
    context = click.Context(command, info_name=name, terminal_width=90)
    text = f"\n{heading} {name}\n\n```text\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            if (found := command.get_command(context, below)) is not None:
                text += helped(found, f"{name} {below}", heading + "#")
    return text


def schemas() -> str:
    """The fields of a user's files, and the JSON schemas that they are taken from."""
    text = (
        "# Schemas\n\nGenerated from what `headgate schema jobs`, `headgate schema plan`, "
        "`headgate schema cluster` "
        "and `headgate schema study` print. [Job files](../jobs.md), [plans](../plans.md), "
        "[labs](../lab.md) and "
        "[studies](../studies.md) say more about each.\n"
    )
    files = (
        ("Job file", jobfile),
        ("Plan file", planfile),
        ("Cluster file", clusterfile),
        ("Study file", studyfile),
    )
    for title, file in files:
        schema: dict[str, Any] = file.schema()
        text += f"\n## {title}\n"
        for name, entry in {"": schema, **schema.get("$defs", {})}.items():
            if "properties" in entry:
                text += f"\n### {title}: {name or 'top level'}\n\n"
                text += f"{entry.get('description', '')}\n\n{fields(entry)}"
        block = json.dumps(schema, indent=2).replace("\n", "\n    ")
        text += f'\n??? note "The JSON schema"\n\n    ```json\n    {block}\n    ```\n'
    return text


def fields(entry: dict[str, Any]) -> str:
    """A table of the fields of an object."""
    needed = entry.get("required", ())
    rows = []
    for name, field in entry["properties"].items():
        default = "has to be given" if name in needed else f"`{json.dumps(field.get('default'))}`"
        rows.append(f"| `{name}` | {kind(field)} | {default} | {field['description']} |")
    return "\n".join(["| field | value | default | meaning |", "|---|---|---|---|", *rows]) + "\n"


def kind(field: dict[str, Any]) -> str:
    """What a field may hold, in a few words."""
    if "anyOf" in field:
        kinds = [kind(each) for each in field["anyOf"] if each.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "$ref" in field:
        return str(field["$ref"]).rpartition("/")[2]
    if "enum" in field or "const" in field:
        return ", ".join(f"`{value}`" for value in field.get("enum", [field.get("const")]))
    if field.get("type") == "array":
        return f"a list of {kind(field.get('items', {}))}"
    if field.get("type") == "object":
        return "a mapping"
    types: str | list[str] = field.get("type", "anything")
    return types if isinstance(types, str) else " or ".join(types)


def python() -> str:
    """What programs and scripts call, from its docstrings."""
    text = (
        "# Python names\n\nGenerated from docstrings. [From Python](../python.md) has examples, "
        "[contributing](../contributing.md) says how plug-ins are registered.\n\n## headgate\n"
    )
    for name, home in headgate._HOMES.items():
        if not name.isupper():
            text += f"\n::: {home}.{name}\n{stated(getattr(headgate, name))}"
    for module in FRAMEWORKS:
        text += f"\n## {module}\n" + "".join(
            f"\n::: {module}.{name}\n"
            for name in exported(module)
            if name != "Stop" and name not in ALIKE
        )
    text += f"\n## In each of {', '.join(FRAMEWORKS)}\n" + "".join(
        f"\n::: headgate.task.front_door.FrontDoor.{name}\n" for name in ALIKE
    )
    return text + "\n## Planner and contracts\n" + "".join(f"\n::: {name}\n" for name in MORE)


def stated(named: Any) -> str:
    """A table of the fields that a dataclass declares; empty where it declares none."""
    is_record: bool = dataclasses.is_dataclass(named)
    declared = declared_fields(named) if is_record else ()
    rows = [f"| `{field.name}` | {field.declaration.help} |" for field in declared]
    if not rows:
        return ""
    return "\n".join(["\n| field | meaning |", "|---|---|", *rows]) + "\n"


def exported(module: str) -> list[str]:
    """The public names of a module, without importing the framework that it needs."""
    tree = ast.parse((ROOT / "src" / module.replace(".", "/") / "__init__.py").read_text())
    [names] = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    return list(names)
