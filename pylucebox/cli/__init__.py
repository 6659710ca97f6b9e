"""The `lucebox` command: demo, generate, chat and doctor.

`pylucebox.cli.main` parses the arguments and turns errors into messages and exit codes; each command is a module of
its own. Commands reach the engine through `pylucebox.cli._ports`, so that they can be tested without one. Neither
the native library nor rich is imported before a command needs it.
"""
