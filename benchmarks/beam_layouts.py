"""How many tokens one pass of the target takes in a search with beams, by the layout of the tree.

    python -m benchmarks.beam_layouts [--prompts 10] [--tokens 40] [--beams 4] [--draft-beams 6] [--k 4]

Speculation runs with the mini pair on the prompts of ``xsum``. Of each tree that the target scores it is
counted how many tokens go through the model and how many rows hold the prompt's keys, had it been laid out as

* one row: every node once, behind one copy of the prompt (what spsbench does);
* a row a beam: every node once, in the row of its beam, all rows as long as the longest;
* a row a path: from each beam to each leaf, all rows as long as the longest.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from benchmarks.pairs import build
from spsbench.base.records import BeamParams, Request, SamplingParams
from spsbench.config import resolve
from spsbench.decode.beam import BeamSearch, DraftSearch, Node, beam_speculative
from spsbench.decode.clock import Stopwatch, SystemClock
from spsbench.decode.stopping import StopRule
from spsbench.engines.local import ends_of
from spsbench.models.beam_lm import BeamLM
from spsbench.runner import plan


@dataclass
class Counted:
    """A tree model that counts what it is asked to score.

    Attributes:
        model: that scores.
        passes: how many trees.
        tokens, rows: sums over the passes, by layout.
    """

    model: BeamLM
    passes: int = 0
    tokens: dict[str, int] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)

    def begin(self, prompt: Sequence[int]) -> None:
        """See ``TreeModel``."""
        self.model.begin(prompt)

    def score(self, nodes: Sequence[Node]) -> Tensor:
        """See ``TreeModel``."""
        self.passes += 1
        for layout, (rows, length) in _layouts(nodes).items():
            self.rows[layout] = self.rows.get(layout, 0) + rows
            self.tokens[layout] = self.tokens.get(layout, 0) + rows * length
        return self.model.score(nodes)

    def keep(self, nodes: Sequence[Node]) -> None:
        """See ``TreeModel``."""
        self.model.keep(nodes)


def _layouts(nodes: Sequence[Node]) -> dict[str, tuple[int, int]]:
    """(rows, length of each) by layout; the first nodes are the beams, all of one depth."""
    first = nodes[0].depth
    inner = {node.parent for node in nodes}
    leaves = [node for node in nodes if node not in inner]
    of_beam: dict[Node, int] = {}
    for node in nodes:
        above = node
        while above.depth > first and above.parent is not None:
            above = above.parent
        of_beam[above] = of_beam.get(above, 0) + 1
    longest = max(node.depth for node in nodes) - first + 1
    return {
        "one row": (1, len(nodes)),
        "a row a beam": (len(of_beam), max(of_beam.values())),
        "a row a path": (len(leaves), longest),
    }


def main() -> None:
    """Search, count, print."""
    given = _arguments()
    torch.set_num_threads(1)
    target, draft = build("mini", torch.float32, torch.device("cpu"))
    ready = plan(resolve({"limit": given.prompts}))
    counted, other = Counted(BeamLM(target.reference())), BeamLM(draft.reference())
    params = BeamParams(given.beams, given.draft_beams)
    with torch.inference_mode():
        for prompt in ready.prompts:
            asked = Request(prompt.ids, given.tokens, ready.stop, SamplingParams(beam=params), 0)
            stop = StopRule.of(asked, ready.source.tokenizer)
            ends, end_tokens = ends_of(stop), len(stop.eos_ids)
            search = BeamSearch(Node(prompt.ids[-1]), params, ends, end_tokens, given.tokens)
            for model in (counted, other):
                model.begin(prompt.ids)
            grow = DraftSearch(params.draft_width, ends, end_tokens)
            for _ in beam_speculative(counted, other, search, given.k, Stopwatch(SystemClock()), grow):
                pass
    print("| layout | tokens a pass | copies of the prompt's keys |")
    print("|---|---|---|")
    for layout, tokens in counted.tokens.items():
        rows = counted.rows[layout] / counted.passes
        print(f"| {layout} | {tokens / counted.passes:.1f} | {rows:.1f} |")


def _arguments() -> argparse.Namespace:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    for name, value in (("prompts", 10), ("tokens", 40), ("beams", 4), ("draft-beams", 6), ("k", 4)):
        parser.add_argument(f"--{name}", type=int, default=value)
    return parser.parse_args()


if __name__ == "__main__":
    main()
