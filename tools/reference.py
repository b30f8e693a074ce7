"""Generates the reference pages of slicectl, settings, REST and metrics from the program itself.

`mkdocs.yml` uses this module as a hook: the pages exist only in the build, so they are never out of date. The texts of
settings are in docs/reference/settings.toml; all others are in the program. To print: `tools/reference.py settings`.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
import tempfile
import tomllib
import typing
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slicemgr.config import Config, NodeConfig, Size

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

REPO = Path(__file__).resolve().parent.parent
SETTINGS = REPO / "docs" / "reference" / "settings.toml"
_LITERALS = {"*": "\\*", "|": "\\|", "<": "&lt;", "_": "\\_", "[": "\\["}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The hook of MkDocs that adds the pages to the build."""
    from mkdocs.structure.files import File

    for name, make in PAGES.items():
        files.append(File.generated(config, f"reference/{name}.md", content=make()))
    return files


def prose(text: str) -> str:
    """A text of the program as Markdown: text between backticks is kept, all other text is escaped."""
    parts = text.split("`")
    for at in range(0, len(parts), 2):
        parts[at] = "".join(_LITERALS.get(letter, letter) for letter in parts[at])
    return "`".join(parts)


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *([cell.replace("\n", " ") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


# slicectl


def commands(group: click.Group, name: str) -> Iterator[tuple[str, click.Command]]:
    """Every command below `group` with its full name, including groups, without hidden ones."""
    context = click.Context(group, info_name=name)
    for word in group.list_commands(context):
        command = group.get_command(context, word)
        if command is None or command.hidden:
            continue
        yield f"{name} {word}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{name} {word}")


def cli() -> str:
    from slicemgr import cli as program
    from slicemgr.cli.root import root

    statuses = (program.__doc__ or "").split("\n\n")[1].split(". What a command")[0].replace("\n", " ")
    parts = [
        "# slicectl\n",
        f"{prose(inspect.cleandoc(root.help or ''))}\n",
        f"Exit statuses: {prose(statuses)}.\n",
        *(_command(name, command) for name, command in commands(root, "slicectl")),
    ]
    return "\n".join(parts)


def _command(name: str, command: click.Command) -> str:
    context = click.Context(command, info_name=name)
    parts = [f"## {name}\n" if name.count(" ") == 1 else f"### {name}\n"]
    usage = " ".join(command.collect_usage_pieces(context))
    parts.append(f"```text\n{name} {usage}\n```\n")
    parts.append(f"{prose(inspect.cleandoc(command.help or ''))}\n")
    rows = []
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and record[1]:  # arguments are in the usage line
            rows.append((f"`{record[0].replace('|', '/')}`", prose(record[1])))
    if rows and not isinstance(command, click.Group):
        parts.append(table(("option", "meaning"), rows))
    return "\n".join(parts)


# settings


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """A setting. name: with its table, as in errors. text, unit: its description."""

    name: str
    default: str
    unit: str
    text: str


def settings(config: Config | None = None, described: dict[str, Any] | None = None) -> list[Setting]:
    """Every setting. Raises ValueError with the name of each that lacks a text or unit, or does not exist."""
    config = config or Config()
    texts: dict[str, Any] = tomllib.loads(SETTINGS.read_text()) if described is None else described
    found, wrong = [], []
    for section in dataclasses.fields(config):
        values = getattr(config, section.name)
        hints = typing.get_type_hints(type(values))
        left = dict(texts.get(section.name, {}))
        for field in dataclasses.fields(values):
            name = f"{section.name}.{field.name}"
            entry = left.pop(field.name, "")
            text, unit = (entry["text"], entry["unit"]) if isinstance(entry, dict) else (entry, "")
            unit = unit or _unit(hints[field.name])
            if not text or not unit:
                wrong.append(f"{name} has no {'text' if not text else 'unit'}")
            found.append(Setting(name, _written(getattr(values, field.name)), unit, text))
        wrong += [f"{section.name}.{name} does not exist" for name in left]
    if wrong:
        raise ValueError(f"{SETTINGS.name}: {'; '.join(wrong)}")
    return found


def _unit(kind: Any) -> str:
    """The unit of a type; "" for a number, whose unit is in settings.toml."""
    named = {Size: "bytes", timedelta: "time", str: "text", Path: "path", bool: "true or false"}
    lists = {tuple[str, ...]: "list of texts", tuple[timedelta, ...]: "list of times"}
    return named.get(kind) or lists.get(kind, "")


def _written(value: object) -> str:
    """A value in the syntax of the settings file."""
    if isinstance(value, Size):
        powers = [(value.bytes >> shift, unit) for shift, unit in ((40, "T"), (30, "G"), (20, "M"), (10, "K"))]
        return next((f'"{number}{unit}"' for number, unit in powers if number), f'"{value.bytes}"')
    if isinstance(value, timedelta):
        spans = (("d", 86400), ("h", 3600), ("m", 60))
        seconds = int(value.total_seconds())
        return next((f'"{seconds // by}{unit}"' for unit, by in spans if seconds and not seconds % by), f'"{seconds}s"')
    if isinstance(value, tuple):
        return f"[{', '.join(_written(one) for one in value)}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Path) and value.is_relative_to(REPO):
        return f'"{value.relative_to(REPO)}"'  # a path in the package, relative to it
    return f'"{value}"' if isinstance(value, str | Path) else str(value)


def settings_page() -> str:
    parts = [
        "# Settings\n",
        "The settings are one TOML file, `/etc/slicemgr/slicemgr.toml` or `$SLICEMGR_CONFIG`. Every setting has a "
        "default. Sizes are written as `512M` (powers of 1024), times as `30s`, `12h` or `7d`. An unknown or wrong "
        "setting is refused by name when a process starts.\n",
    ]
    rows: dict[str, list[Setting]] = {}
    for one in settings():
        rows.setdefault(one.name.split(".")[0], []).append(one)
    for section, found in rows.items():
        parts.append(f"## {section}\n")
        cells = ((f"`{one.name}`", f"`{one.default}`", one.unit, one.text) for one in found)
        parts.append(table(("setting", "default", "unit", "meaning"), cells))
    return "\n".join(parts)


# REST and metrics


def in_application(ask: Callable[[Any], Any]) -> Any:
    """The result of `ask` for the application of the service with an empty database."""
    import slicemgr.store
    from slicemgr.store import schema
    from slicemgr.web import create_app

    with tempfile.TemporaryDirectory() as folder:
        below = Path(folder)
        config = Config(node=NodeConfig(state_dir=below / "state", run_dir=below / "run", pool=below / "pool"))
        (below / "state" / "db").mkdir(parents=True)
        schema.upgrade(config.store_url)
        with slicemgr.store.open(config) as store:
            return ask(create_app(config, store))


def openapi() -> dict[str, Any]:
    described: dict[str, Any] = in_application(lambda app: app.extensions["slicemgr.openapi"])
    return described


def rest() -> str:
    from slicemgr.web.openapi import operations

    spec = openapi()
    parts = ["# REST API\n", f"{prose(spec['info']['description'])}\n"]
    parts.append("[Use REST and Python](../how-to/rest.md) describes lists, repeated requests and operations.\n")
    groups: dict[str, list[str]] = {tag["name"]: [] for tag in spec["tags"]}
    for path, verb, operation in operations(spec):
        groups[operation["tags"][0]].append(_route(path, verb, operation, spec))
    texts = {tag["name"]: tag.get("description", "") for tag in spec["tags"]}
    for name, routes in groups.items():
        if routes:
            parts += [f"## {name}\n", f"{prose(texts[name])}\n", *routes]
    return "\n".join(parts)


def _route(path: str, verb: str, operation: dict[str, Any], spec: dict[str, Any]) -> str:
    heading = f"### `{verb.upper()} {path}` {{: #{operation['operationId'].replace('_', '-')} }}\n"
    text = "\n\n".join(operation[one] for one in ("summary", "description") if operation.get(one))
    parts = [heading, f"{prose(text)}\n"]
    rows = [
        (f"`{one['name']}`", one["in"], _kind(one["schema"]), prose(one.get("description", "")))
        for one in operation["parameters"]
    ]
    for content in operation.get("requestBody", {}).get("content", {}).values():
        rows += _fields(content["schema"], spec)
    if rows:
        parts.append(table(("name", "in", "type", "meaning"), rows))
    answers = ", ".join(f"{status} ({_answer(one)})" for status, one in operation["responses"].items())
    parts.append(f"Answers: {answers}.\n")
    return "\n".join(parts)


def _fields(schema: dict[str, Any], spec: dict[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """The rows of the fields of a body."""
    if "$ref" in schema:
        schema = spec["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    for name, one in schema.get("properties", {}).items():
        needed = ", required" if name in schema.get("required", ()) else ""
        meaning = one.get("description") or one.get("metadata", {}).get("description", "")
        yield f"`{name}`", "body", f"{_kind(one)}{needed}", prose(meaning)


def _kind(schema: dict[str, Any]) -> str:
    from slicemgr.web import reference

    return prose(reference._kind(schema))


def _answer(response: dict[str, Any]) -> str:
    for content in response.get("content", {}).values():
        if "$ref" in content.get("schema", {}):
            return f"`{content['schema']['$ref'].rpartition('/')[2]}`"
    return prose(response.get("description") or "no body")


def metric_families() -> list[Any]:
    """Every metric that `/metrics` can have, as families of prometheus_client."""
    from slicemgr.config import RecordConfig
    from slicemgr.service.views.metrics import Testbed
    from slicemgr.web.broker_metrics import BrokerMetrics
    from slicemgr.web.image_traffic import ImageTraffic
    from slicemgr.web.refusals import Refusals

    def ask(app: Any) -> list[Any]:
        state = app.extensions["slicemgr"]
        config = dataclasses.replace(state.config, record=RecordConfig(slice_metrics=True))
        collectors = (Testbed(state.store, config), BrokerMetrics(config.broker_file), Refusals(), ImageTraffic())
        return [family for one in collectors for family in one.collect()]

    found: list[Any] = in_application(ask)
    return found


def metrics() -> str:
    parts = [
        "# Metrics\n",
        "`/metrics` exports these series for Prometheus; it needs an admin's token. Names and labels are an interface: "
        "they stay. [Monitor a testbed](../how-to/monitor.md) describes the set-up. The `slicemgr_slice_` series exist "
        "with `record.slice_metrics` only. The unit is the last part of a name; a name without a unit is a number of "
        "things.\n",
    ]
    rows = []
    for family in metric_families():
        name = family.name + ("_total" if family.type == "counter" else "")
        labels = ", ".join(f"`{one}`" for one in family._labelnames) or "none"
        rows.append((f"`{name}`", family.type, labels, prose(family.documentation)))
    parts.append(table(("metric", "type", "labels", "meaning"), rows))
    return "\n".join(parts)


PAGES: dict[str, Callable[[], str]] = {"cli": cli, "settings": settings_page, "rest": rest, "metrics": metrics}

if __name__ == "__main__":
    if sys.argv[1:] not in [[name] for name in PAGES]:
        sys.exit(f"reference: name one page: {', '.join(PAGES)}")
    print(PAGES[sys.argv[1]]())
