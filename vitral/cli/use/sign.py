"""`vitral sign`."""

import logging
from pathlib import Path
from typing import Annotated

import typer

from vitral.cli.terminal.app import verb
from vitral.cli.terminal.completion import complete_weights
from vitral.cli.terminal.options import option
from vitral.cli.terminal.text import echo
from vitral.core.errors import ConfigError

log = logging.getLogger("vitral")

FOLDER_HELP = "A bundle, such as runs/photos/best, or a folder that vitral export or vitral pack wrote."
KEY_HELP = "The file of the private key to sign with."
NEW_KEY_HELP = "Create a key pair instead: this file, which nobody else should get, and the public key FILE.pub."


@verb("vitral sign --new-key me.key", "vitral sign runs/photos/best --key me.key")
def sign(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help=FOLDER_HELP, autocompletion=complete_weights)] = "",
    key: Annotated[str, option("FILE", KEY_HELP, "none")] = "",
    new_key: Annotated[str, option("FILE", NEW_KEY_HELP, "none")] = "",
) -> None:
    """Sign a model, so that others can require your signature.

    They open it with --require-signature FILE.pub, which every verb that loads a model takes.
    """
    if new_key and (folder or key):
        message, hint = "creates a key, and signs nothing", "create the key first, then sign with --key"
        raise ConfigError(message, code="config.conflict", where="--new-key", hint=hint)
    if new_key:
        from vitral.core.signature import create_key

        path = Path(new_key).expanduser()
        echo(create_key(path))
        log.info(f"keep {path} to yourself, and give the other file to those who open what you sign")
        return
    for name, value in (("FOLDER", folder), ("--key", key)):
        if not value:
            message, hint = "expected a value", "vitral sign FOLDER --key KEY, or vitral sign --new-key KEY"
            raise ConfigError(message, code="config.missing_value", where=name, hint=hint)
    from vitral.core.manifest import sign as sign_files

    echo(sign_files(folder, key))
