"""What all experiments that fill a folder have in common: their options, and how they run."""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slicemgr.cli.bench.options import Command

if TYPE_CHECKING:
    from collections.abc import Callable

    from slicemgr.bench.frame.experiment import Experiment, Json
    from slicemgr.bench.frame.folder import Folder
    from slicemgr.client import Client


@dataclass(frozen=True, slots=True)
class Frame:
    """The options of a run. output: None for a new folder in the working directory."""

    output: Path | None
    resume: bool
    dry_run: bool
    keep: bool


def frame_options(command: Command) -> Command:
    """`--output`, `--resume`, `--dry-run`, `--keep`; the command gets them as one argument, `frame`."""

    @wraps(command)
    def framed(*args: Any, output: Path | None, resume: bool, dry_run: bool, keep: bool, **rest: Any) -> Any:
        return command(*args, frame=Frame(output, resume, dry_run, keep), **rest)

    keep = click.option("--keep", is_flag=True, help="Keep the slices at the end. --resume deletes them later.")
    return folder_options(keep(framed))  # type: ignore[return-value]  # the wrapped command, with four options more


def folder_options(command: Command) -> Command:
    """`--output`, `--resume`, `--dry-run`."""
    for option in (
        click.option(
            "--dry-run", is_flag=True, help="Print the steps and the estimated duration without running them."
        ),
        click.option("--resume", is_flag=True, help="Continue the run in --output and measure what is missing."),
        click.option(
            "--output",
            type=click.Path(file_okay=False, path_type=Path),
            metavar="FOLDER",
            help="Folder for data and report  [default: a new folder in the current directory].",
        ),
    ):
        command = option(command)
    return command


def carry_out(
    frame: Frame,
    client: Client,
    node: str,
    name: str,
    parameters: Json,
    make: Callable[[str], Experiment],
) -> None:
    """Run an experiment, and write its data and report to a folder.

    make: returns the experiment, given the prefix of all names that it uses. Refused if another one runs or the folder
    belongs to something else; other errors are those of the experiment.
    """
    from slicemgr.bench.frame import folder, lock, provenance, run
    from slicemgr.cli.bench.progress import progress_display
    from slicemgr.errors import Refused, invalid

    if frame.resume and frame.output is None:
        raise invalid("--resume", "which run should be continued?", "--output FOLDER")
    path = frame.output or new_folder(name, parameters)
    if frame.dry_run:
        folder.look(path, name, parameters, resume=frame.resume)
        with closing(make("")) as experiment:
            _say_steps(experiment, path)
        return
    about = f"`{name}` into {path.resolve()}"
    with (
        lock.held(lock.path(client.url, node), about),
        folder.Folder.take(path, name, parameters, resume=frame.resume) as taken,
    ):
        if "prefix" not in taken.info:
            taken.note(provenance.head(client, node, ["slicectl", *sys.argv[1:]], parameters.get("seed")))
        with closing(make(taken.info["prefix"])) as experiment, progress_display() as progress:
            try:
                outcome = run.carry_out(experiment, taken, progress, keep=frame.keep)
            except Refused:
                if not taken.steps:
                    taken.forget()
                raise
            finally:
                if taken.steps:
                    _report(taken, progress.say)
                if taken.info["outcome"] in (run.INTERRUPTED, run.FAILED) and taken.steps:
                    progress.say(f"{len(taken.steps)} finished steps are stored in {path}; --resume continues the run")
        click.echo(f"{outcome}: {path}")


def new_folder(name: str, parameters: Json) -> Path:
    """The path of a new folder in the current directory, with the time in its name."""
    from datetime import UTC, datetime

    words = (name, str(parameters.get("kind", "")), datetime.now(UTC).strftime("%Y%m%d-%H%M%S"))
    return Path("-".join(word for word in words if word))


def _say_steps(experiment: Experiment, path: Path) -> None:
    from slicemgr.bench.frame.run import estimate
    from slicemgr.cli.render.human import span

    steps = experiment.steps()
    for one in steps:
        click.echo(f"{one.id}  {one.title}")
    click.echo(f"{len(steps)} steps into {path}, estimated duration {span(estimate(steps))}")


def _report(taken: Folder, say: Callable[[str], None]) -> None:
    """Write the report and print its main results; the measurements stay in the folder if that fails."""
    from slicemgr.bench.report import pages
    from slicemgr.errors import SlicemgrError

    try:
        pages.write(taken.run)
        for sentence in pages.content(taken.run).outcome:
            say(sentence)
    except SlicemgrError as error:
        say(f"no report: {error}; create it later with `slicectl bench report`")
