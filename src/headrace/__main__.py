"""``python -m headrace``, and the ``headrace`` script. Must import next to nothing before it listens to Ctrl-C."""

from headrace.cli.interrupts import leaving_at_once


def main() -> None:
    """The command line."""
    with leaving_at_once():
        from headrace.cli.main import main as run
    run()


if __name__ == "__main__":
    main()
