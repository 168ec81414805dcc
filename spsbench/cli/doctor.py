"""``spsbench doctor``."""

from __future__ import annotations

from spsbench.cli import options


def doctor(json: options.Json = False, debug: options.Debug = False) -> None:
    """Tell what this machine can run: environment, models, data and the checker of programs."""
    from dataclasses import asdict

    from spsbench.cli.checks import examine, render
    from spsbench.cli.console import out, print_json
    from spsbench.errors import UnavailableError

    checks = examine()
    if json:
        print_json([asdict(check) for check in checks])
    else:
        out().print(render(checks))
    broken = [check.what for check in checks if check.state == "broken"]
    if broken:
        raise UnavailableError(f"{', '.join(broken)} cannot be used.", remedy="Install spsbench again.")
