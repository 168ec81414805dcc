"""``spsbench simulate --formula``: what Leviathan et al. 2022 predict, without a simulation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType

from spsbench.cli import options
from spsbench.cli.console import present, say


def theory(
    alpha: Annotated[
        float, typer.Option(metavar="A", help="Probability that one draft token is accepted, 0 to 1.")
    ],
    c: Annotated[
        float, typer.Option(metavar="C", help="Time of one draft run over the time of one target run.")
    ],
    k: Annotated[str, typer.Option(metavar="LIST", help="Lookaheads: 4, 0,2,4 or 0..7.")] = "0..7",
    json: options.Json = False,
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """What Leviathan et al. 2022 predict from alpha and c, assuming independent acceptance.

    Example: spsbench simulate --formula --alpha 0.8 --cost 0.13
    """
    say("`spsbench theory` is now `spsbench simulate --formula`.", quiet=quiet)
    show(alpha, c, k, json=json, quiet=quiet)


def show(alpha: float, c: float, k: str | None, *, json: bool, quiet: bool) -> None:
    """Print the prediction.

    Args:
        alpha: probability that one draft token is accepted.
    """
    from spsbench.config import parse_ks

    prediction = predict(alpha, c, parse_ks(k or "0..7"))
    present(lambda: prediction, lambda: render(prediction), json=json, quiet=quiet)


def predict(alpha: float, c: float, ks: Sequence[int]) -> dict[str, Any]:
    """Expected tokens per loop and speedup for every K, and the best K."""
    from spsbench.decode.theory import expected_tokens, minimum_gain, walltime_factor
    from spsbench.predict.whatif import KS, leviathan

    gain = minimum_gain(alpha, c)  # checks both
    best = leviathan(alpha, c).best_k(KS)
    return {
        "alpha": alpha,
        "c": c,
        "best_k": best,
        "best_speedup": walltime_factor(alpha, c, best),
        "minimum_gain": gain,
        "rows": [
            {"k": k, "tokens_per_loop": expected_tokens(alpha, k), "speedup": walltime_factor(alpha, c, k)}
            for k in ks
        ],
    }


def render(prediction: dict[str, Any]) -> RenderableType:
    """The prediction for a terminal."""
    from spsbench.report.tables import Table, right

    rows = [
        [str(row["k"]), f"{row['tokens_per_loop']:.3f}", f"{row['speedup']:.2f}x"]
        for row in prediction["rows"]
    ]
    table = Table([*map(right, ("K", "tokens/loop", "speedup"))], rows)
    best = f"Best: K={prediction['best_k']} with {prediction['best_speedup']:.2f}x."
    note = "A prediction, not a measurement: acceptance is assumed independent, verifying K tokens free."
    return Group(table.as_rich(), "", best, note)
