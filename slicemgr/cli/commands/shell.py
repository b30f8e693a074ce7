"""slicectl completion and version."""

from __future__ import annotations

import click


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script: `eval "$(slicectl completion bash)"`."""
    from click.shell_completion import ShellComplete, get_completion_class

    from slicemgr.cli.root import root

    kind = get_completion_class(shell)
    if kind is None:
        raise click.BadParameter(f"there is no completion for {shell}")
    script = kind(root, {}, "slicectl", "_SLICECTL_COMPLETE")
    click.echo(ShellComplete.source(script))  # click's class starts a bash to get its version


@click.command()
def version() -> None:
    """Print the version."""
    from slicemgr import __version__

    click.echo(__version__)
