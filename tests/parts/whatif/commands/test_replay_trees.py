"""``spsbench replay --tree``: what loops of trees give, without running them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from operator import mul
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from support.commandline import Cli, sampled_run
from transformers import AutoModelForCausalLM

from spsbench.base.arrays import Floats
from spsbench.base.errors import UsageError
from spsbench.base.paths import mini_dir
from spsbench.base.records import Spec
from spsbench.config import resolve
from spsbench.decode.algorithms import start_tree
from spsbench.decode.clock import FakeClock, Stopwatch
from spsbench.decode.rows import HostRow
from spsbench.decode.sampling import UniformStream
from spsbench.drafters.registry import build_rule
from spsbench.drafters.shape import Shape
from spsbench.drafters.tree import ModelTreeDrafter, Siblings
from spsbench.law.siblings import top_siblings
from spsbench.models.beam_lm import BeamLM
from spsbench.models.torch_lm import TorchLM
from spsbench.parts.whatif.replay import reading
from spsbench.parts.whatif.replay.texts import Written, texts_of
from spsbench.parts.whatif.replay.trees import StaticTree, shapes_of, tree_of, trees_of

pytestmark = [pytest.mark.usefixtures("quick_rehearsals"), pytest.mark.thorough]

LENGTH = 48
SHAPES = ("3,2", "1,1,1")
ALONE = ("--threads", "1", "--json", "--quiet")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ArS texts of one length, so that loops of another run over as many tokens are counted alike."""
    run = tmp_path_factory.mktemp("trees") / "run"
    return sampled_run(run, "--arms", "ars", "--fixed-length", "--max-new-tokens", str(LENGTH))


def mini(name: str) -> BeamLM:
    return BeamLM(TorchLM(AutoModelForCausalLM.from_pretrained(mini_dir() / name, dtype=torch.float32)))


class Ran(NamedTuple):
    """What the loop itself wrote after a prompt, and in how many loops."""

    prompt: Sequence[int]
    tokens: list[int]
    loops: int


def run_trees(run: Written, shape: str, rule: str, siblings: Siblings, seeds: int = 1) -> list[Ran]:
    """Texts of one length after the run's prompts."""
    branching = [int(part) for part in shape.split(",")]
    target, draft = mini("target"), mini("draft")
    drafter = ModelTreeDrafter(draft, run.sampling, Shape(tuple(branching)), siblings)
    accept, nodes = build_rule(Spec(rule)).accept, sum(accumulate(branching, mul))
    found = []
    with torch.inference_mode():
        for number, text in enumerate(run.texts * seeds):
            uniforms = UniformStream(1000 + number, torch.device("cpu"))
            begin = start_tree(target, drafter, text.prompt, nodes, run.sampling, uniforms, accept)
            tokens, loops = list[int](), 0
            for loop in begin(Stopwatch(FakeClock())):
                tokens, loops = tokens + loop.tokens, loops + 1
                if len(tokens) >= LENGTH:
                    break
            found.append(Ran(text.prompt, tokens[:LENGTH], loops))
    return found


def tokens_per_loop(ran: Sequence[Ran]) -> float:
    return LENGTH * len(ran) / sum(each.loops for each in ran)


def replayed(cli: Cli, run: Path, *flags: Any) -> dict[tuple[str, str], Any]:
    result = cli("replay", run, "--k", "3", *flags, *ALONE)
    assert result.code == 0, result.err
    return {(cell["drafter"], cell["rule"]): cell for cell in json.loads(result.out)["cells"]}


@pytest.mark.parametrize("shape", SHAPES)
def test_tokens_per_loop_are_those_of_the_loop(cli: Cli, written: Path, shape: str) -> None:
    cells = replayed(cli, written, "--tree", shape, "--budget", "0")
    (name, rule), cell = list(cells.items())[-1]
    tree = tree_of(Spec.parse(name))
    assert tree is not None
    assert resolve({"trees": shape}).rules == (rule,)  # of a run which names none
    assert (cell["k"], cell["nodes"]) == (len(tree.shape.branching), tree.shape.nodes)
    found = cell["tokens_per_loop"]
    ran = tokens_per_loop(run_trees(texts_of(written), shape, rule, "without", seeds=2))
    width = found["high"] - found["low"]
    assert found["low"] - width < ran < found["high"] + width, (found, ran)
    if shape == "1,1,1":
        assert found == pytest.approx(cells["model", "modified-rejection"]["tokens_per_loop"], abs=1e-6)


def test_a_text_gives_each_loop_of_its_tree(
    cli: Cli, written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the most probable siblings the loops are no chance: as many as were run. The control: a rank off."""
    ran = run_trees(texts_of(written), "3,2,1", "one-hot", "top")
    lines = [{"prompt_ids": each.prompt, "completion_ids": each.tokens} for each in ran]
    (tmp_path / "texts.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    asked = ("--pair", "mini", "--temperature", "1", "--top-p", "1", "--tree", "3,2,1", "--budget", "0")
    asked += ("--rule", "one-hot")
    tree = "model:siblings=top:tree=3-2-1", "one-hot"
    found = replayed(cli, tmp_path / "texts.jsonl", *asked)[tree]["tokens_per_loop"]["estimate"]
    assert found == pytest.approx(tokens_per_loop(ran), rel=1e-9)
    for off in (1, -1):
        monkeypatch.setattr(reading, "top_siblings", partial(ranked_off, off))
        wrong = replayed(cli, tmp_path / "texts.jsonl", *asked)[tree]["tokens_per_loop"]["estimate"]
        assert abs(wrong / found - 1) > 0.02


def ranked_off(off: int, p: HostRow, token: int, most: int) -> Floats:
    found = top_siblings(p, token, most + 1)
    return found[1:] if off > 0 else np.append(0.0, found[: most - 1])


def test_every_rule_of_point_masses_is_one_and_trees_have_times(cli: Cli, written: Path) -> None:
    rules = "block,one-hot,sample-and-compare,traversal,recursive-rejection"
    asked = ("--tree", "chain+2,1+2,2", "--rule", rules, "--drafter", "model,lookup", "--budget", "0.1")
    cells = replayed(cli, written, *asked)
    assert len(cells) == 2 + 2 * 4
    assert all(cell["predicted"]["speedup"]["estimate"] > 0 for cell in cells.values())
    for shape in ("2-1", "2-2"):
        top = [cell for (name, _), cell in cells.items() if name == f"model:siblings=top:tree={shape}"]
        assert len(top) == 3
        assert len({cell["tokens_per_loop"]["estimate"] for cell in top}) == 1
    wide, narrow = (cells[f"model:siblings=top:tree={shape}", "one-hot"] for shape in ("2-2", "2-1"))
    assert wide["tokens_per_loop"]["estimate"] > narrow["tokens_per_loop"]["estimate"]


def test_times_of_another_machine_are_of_as_many_rows(cli: Cli, written: Path, tmp_path: Path) -> None:
    facts = json.loads(cli("bench", "--k", "1,3,6", "--seconds", "0.2", "--threads", "1", "--json").out)
    target, draft = (facts["rounds"][name] for name in ("target", "draft"))
    target_s = {rows: 0.010 + 0.002 * rows for rows in target["rows"]}
    draft_s = {rows: 0.001 + 0.0005 * rows for rows in draft["rows"]}
    # Every round alike: what the machine took is not this test's matter.
    for own, of_rows in ((target, target_s), (draft, draft_s)):
        own["seconds"] = [[of_rows[rows] for rows in own["rows"]] for _ in own["seconds"]]
    (tmp_path / "times.json").write_text(json.dumps(facts))
    cells = replayed(cli, written, "--tree", "2,2", "--rule", "one-hot", "--times", tmp_path / "times.json")
    cell = cells["model:siblings=top:tree=2-2", "one-hot"]
    gain = cell["tokens_per_loop"]["estimate"] * target_s[1] / (target_s[7] + draft_s[1] + draft_s[2])
    assert cell["predicted"]["speedup"]["estimate"] == pytest.approx(gain, rel=1e-6)


def test_a_tree_is_a_drafters_option() -> None:
    (shape,) = shapes_of("chain+4,2,1+4,2,1")
    tree = StaticTree(Spec.parse("quantised:bits=4"), shape, "top")
    assert str(tree.spec) == "quantised:bits=4:siblings=top:tree=4-2-1"
    assert tree_of(Spec.parse(str(tree.spec))) == tree
    assert tree.rows == (1, 4, 8)
    assert shape.nodes == 20
    assert str(tree) == "quantised:bits=4, tree 4,2,1"
    named = Spec.parse("model:siblings=independent")
    (drawn,) = trees_of([named], [shape], ["recursive-rejection"])
    assert str(drawn) == "model:siblings=independent:tree=4-2-1"
    with pytest.raises(UsageError, match="no law of it is known"):
        trees_of([named], [shape], ["one-hot"])
