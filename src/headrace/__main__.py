"""``python -m headrace``: the command line, as the ``headrace`` script runs it."""

from headrace.cli.main import main

if __name__ == "__main__":
    main()
