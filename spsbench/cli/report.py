"""``spsbench report``."""

from __future__ import annotations

from spsbench.cli import options


def report(
    run: options.Run = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Show a run's results again and write its report.md, from what it recorded."""
    from spsbench.cli.console import out, print_json, say
    from spsbench.cli.derive import derive
    from spsbench.cli.resume import resume_command
    from spsbench.paths import results_dir
    from spsbench.report.terminal import show
    from spsbench.store import latest

    directory = run or latest(results_dir())
    summary = derive(directory)
    if json:
        print_json(summary)
    else:
        show(summary, out())
    if not summary["complete"]:
        say(f"The run is not complete. Continue it with:\n  {resume_command(directory)}", quiet=quiet)
    say(f"The report is in {directory / 'report.md'}", quiet=quiet)
