"""`embermq pub` and `embermq sub`, which the program `embermq` finds by their entry points. Nothing else imports them.
They need `typer`, which comes with `embermq`."""
