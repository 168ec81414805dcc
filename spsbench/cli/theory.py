"""``spsbench theory``."""

from __future__ import annotations

from typing import Annotated

import typer

from spsbench.cli import options


def theory(
    alpha: Annotated[
        float, typer.Option(metavar="A", help="Probability that one draft token is accepted, 0 to 1.")
    ],
    c: Annotated[
        float, typer.Option(metavar="C", help="Time of one draft run over the time of one target run.")
    ],
    k: Annotated[str, typer.Option(metavar="LIST", help="Lookaheads: 4, 0,2,4 or 0..7.")] = "0..7",
    json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """What Leviathan et al. 2022 predict from alpha and c, assuming independent tests."""
    from spsbench.cli.console import out, print_json
    from spsbench.cli.prediction import predict, render
    from spsbench.config import parse_ks

    prediction = predict(alpha, c, parse_ks(k))
    if json:
        print_json(prediction)
    else:
        out().print(render(prediction))
