"""How ``--help`` looks: plain columns that fold at any width, and never a name or a sentence cut short."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

WHOLE = 10_000  # characters: every first sentence


class CommandGroup(TyperGroup):
    """A group that tells each command's first sentence whole: the library would cut it to what one line holds."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, one.get_short_help_str(WHOLE)) for name, one in found if one is not None and not one.hidden]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)
