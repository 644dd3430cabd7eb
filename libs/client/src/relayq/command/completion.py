"""completion: the shell's part of it; the argument parser answers the rest when the shell asks."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

import typer
from typer.completion import get_completion_script  # pyright: ignore[reportPrivateImportUsage]  exported nowhere else

PROGRAM: Final = "relayq"


class Shell(StrEnum):
    """Those whose completion is made."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(shell: Annotated[Shell, typer.Argument(help="Which shell's.", show_default=False)]) -> None:
    """Print a shell's completion script, for `eval "$(relayq completion bash)"` in its start-up file."""
    print(get_completion_script(prog_name=PROGRAM, complete_var="_RELAYQ_COMPLETE", shell=shell.value))
