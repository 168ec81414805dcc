"""``python -m spsbench``, and the command ``spsbench``."""

from __future__ import annotations

import sys


def run() -> int:
    """Run the command line; Ctrl-C while it is being imported ends it as quietly as later on."""
    try:
        from spsbench.cli.main import main
    except KeyboardInterrupt:
        return 130
    return main()


if __name__ == "__main__":
    sys.exit(run())
