"""Groups of commands: whole sentences in their help, and the nearest name for a command that does not exist."""

from __future__ import annotations

from difflib import get_close_matches

import click

_WHOLE = 1000  # characters; click cuts the first sentence of a command at the edge of the terminal otherwise


class Group(click.Group):
    """A group whose help has the whole first sentence of each command."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, one.get_short_help_str(_WHOLE)) for name, one in found if one is not None and not one.hidden]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click's, which suggests only names of commands whose modules are imported."""
        name = args[0]
        if not name.startswith("-") and not ctx.resilient_parsing and self.get_command(ctx, name) is None:
            near = get_close_matches(name, self.list_commands(ctx), 1)
            raise click.UsageError(f"there is no command {name!r}{f'; did you mean {near[0]!r}?' if near else ''}", ctx)
        return super().resolve_command(ctx, args)
