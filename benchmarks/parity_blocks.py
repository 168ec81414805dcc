"""Drafts of DFlash, DFlash2, DSpark, MTP modules and assistants against code that others wrote.

    python -m benchmarks.parity_blocks --python ENVIRONMENT/bin/python [CASE ...]

``ENVIRONMENT`` has ``pip install speculators==0.9.0 dflash==0.1.0``; transformers' own classes are those of
this environment. For each case a small random target and drafter are written to a folder. Here the
production loops draft in 200 loops, at temperature 1 and greedily. In a process of its own the other code
gets the folder, the text and where each loop began; it reads the target by itself, drafts greedily, and
scores our drafted tokens. The table has the largest difference of a logit over the largest logit, and how
many greedy drafts are equal token for token. A second reading with one convention changed shows that a
difference would be seen.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

LOOPS, K, V, WIDTH = 200, 4, 24, 32
PROMPT = [7, 3, 11, 20, 14, 9, 9, 3]


@dataclass(frozen=True)
class Case:
    """A drafter, its target and whose code it is held against.

    Attributes:
        reference: ``speculators``, ``dflash`` or ``transformers``.
        kind: of the drafter.
        target: of ``tests/support``.
        layout: of the drafter's folder, for ``tests/support``.
        otherwise: an option of the drafter that reads it wrongly.
    """

    reference: str
    kind: str
    target: str
    layout: dict[str, Any] = field(default_factory=dict)
    otherwise: str = ""
    k: int = K


CASES = {
    "dflash-speculators": Case("speculators", "dflash", "qwen3", otherwise="ids=output"),
    "dflash-speculators-anchor": Case(
        "speculators", "dflash", "qwen3", {"sample_from_anchor": True}, "anchor=own"
    ),
    "dflash-speculators-sliding": Case("speculators", "dflash", "qwen3", {"sliding": 3}, "window=each"),
    "dflash-speculators-vocabulary": Case("speculators", "dflash", "qwen3", {"drafted": 12}, "ids=output"),
    "dflash-dflash": Case("dflash", "dflash", "qwen3", {"writer": "z-lab"}, "ids=after"),
    "dflash-dflash-sliding": Case(
        "dflash", "dflash", "qwen3", {"writer": "z-lab", "sliding": 4}, "sliding=both"
    ),
    "dflash2-speculators": Case("speculators", "dflash2", "qwen3", otherwise="ids=output"),
    "dflash2-dflash": Case("dflash", "dflash2", "qwen3", {"writer": "z-lab"}, "ids=after"),
    "dspark-speculators": Case("speculators", "dspark", "qwen3", {"drafted": 12}, "anchor=own"),
    "dspark-speculators-gated": Case("speculators", "dspark", "qwen3", {"markov": "gated"}, "anchor=own"),
    "dspark-speculators-rnn": Case("speculators", "dspark", "qwen3", {"markov": "rnn"}, "anchor=own"),
    "dspark-speculators-rnn-own": Case(
        "speculators", "dspark", "qwen3", {"markov": "rnn", "sample_from_anchor": False}, "anchor=next"
    ),
    "mtp-speculators-qwen3": Case("speculators", "mtp", "qwen3", otherwise="recycle=pre"),
    "mtp-transformers-deepseek-v3": Case("transformers", "mtp", "deepseek-v3", otherwise="recycle=pre"),
    "mtp-transformers-glm4-moe": Case("transformers", "mtp", "glm4-moe", otherwise="recycle=pre"),
    "mtp-transformers-mellum": Case("transformers", "mtp", "mellum", otherwise="recycle=pre"),
    "mtp-generate-deepseek-v3": Case("generate", "mtp", "deepseek-v3", k=1),
    "mtp-generate-glm4-moe": Case("generate", "mtp", "glm4-moe", k=1),
    "assistant-transformers": Case("transformers", "assistant", "gemma4", otherwise="position=written"),
}
DEPTH = 2
"""Of targets with modules. transformers looks for these behind 46, 61 or 92 layers alone: it is told of 2."""


# Ours, in this environment.


def write(case: Case, base: Path) -> tuple[Path, str]:
    """Write target and drafter; return the target's folder and the drafter as an option names it."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    from support import tiny_blocks, tiny_models, tiny_mtp  # type: ignore[import-not-found]

    target = base / "target"
    if case.kind == "assistant":
        tiny_mtp.save_assistant(base / "assistant", vocab_size=V)
        tiny_models.save(tiny_mtp.make_gemma4(vocab_size=V), target)
        return target, f"assistant:from={base / 'assistant'}"
    if case.kind == "mtp" and case.target != "qwen3":
        tiny_mtp.save_with_mtp(case.target, target, DEPTH, vocab_size=V, bos_token_id=None, eos_token_id=None)
        return target, "mtp"
    made = tiny_models.make(
        tiny_models.config_of("qwen3", vocab_size=V, bos_token_id=None, eos_token_id=None)
    )
    tiny_models.save(made, target)
    folder = base / case.kind
    if case.kind == "mtp":
        tiny_mtp.save_speculators_mtp(folder, made.config, str(target))
        return target, f"mtp:from={folder}"
    sizes = {"hidden": WIDTH, "vocab_size": V, "target_layers": 4, "target": str(target)}
    tiny_blocks.save_block(folder, kind=case.kind, **sizes, **case.layout)
    return target, f"heads:from={folder}"


def drafts(target: Path, drafter: str, k: int, greedy: bool) -> dict[str, Tensor]:
    """The text of ``LOOPS`` loops, where each began, its drafted tokens [loops, k] and their logits."""
    from transformers import AutoModelForCausalLM

    from spsbench.base.records import SamplingParams, Spec
    from spsbench.decode import rows
    from spsbench.decode.algorithms import start
    from spsbench.decode.clock import FakeClock, Stopwatch
    from spsbench.decode.sampling import UniformStream
    from spsbench.drafters.registry import Context, build_drafter, drafter_kind
    from spsbench.models.torch_lm import TorchLM

    cpu, spec = torch.device("cpu"), Spec.parse(drafter)
    model = TorchLM(AutoModelForCausalLM.from_pretrained(target).eval())
    model.files = target
    keeping = model.with_features("--drafter", drafter_kind(spec.name).states_of(spec, model.layers))
    sampling = SamplingParams(greedy=greedy)
    drafting = build_drafter(
        spec, Context(keeping, None, sampling, cpu, model.vocab_size, hidden=keeping, k=k)
    )
    heard, usual, propose = list[Tensor](), rows.warped, drafting.draft

    def hearing(logits: Tensor, params: SamplingParams) -> Any:
        heard.append(logits.clone())
        return usual(logits, params)

    def draft(tokens: Sequence[int], k: int, u: Tensor) -> Any:
        heard.clear()
        rows.warped = hearing
        try:
            return propose(tokens, k, u)
        finally:
            rows.warped = usual

    drafting.draft = draft  # type: ignore[method-assign]
    text, starts, tokens, logits = list(PROMPT), [], [], []
    begin = start(keeping, drafting, PROMPT, k, sampling, UniformStream(3, cpu))
    for loop in islice(begin(Stopwatch(FakeClock())), LOOPS):
        assert loop.draft is not None
        starts.append(len(text))
        tokens.append(loop.draft.tokens)
        logits.append(torch.cat(heard))
        text += loop.tokens
    # ``heard`` is of the loop that was drafted last: read before the next one begins.
    return {
        "ids": torch.tensor(text),
        "starts": torch.tensor(starts),
        "tokens": torch.stack(tokens),
        "logits": torch.stack(logits),
    }


def compared(case: Case, target: Path, drafter: str, base: Path, python: str) -> dict[str, Any]:
    with torch.inference_mode():
        drawn = drafts(target, drafter, case.k, greedy=False)
        best = drafts(target, drafter, case.k, greedy=True)
    given = {f"drawn.{name}": part.contiguous() for name, part in drawn.items()}
    given |= {f"best.{name}": part.contiguous() for name, part in best.items()}
    save_file(given, base / "given.safetensors")
    # transformers 5.23.0 builds no assistant: its code in the other environment is asked.
    apart = case.reference in ("speculators", "dflash") or case.kind == "assistant"
    environment = python if apart else sys.executable
    told = subprocess.run(
        [environment, __file__, json.dumps([case.reference, case.kind]), str(base)],
        capture_output=True,
        text=True,
        check=False,
    )
    if told.returncode:
        raise RuntimeError(told.stderr[-3000:])
    theirs = load_file(base / "theirs.safetensors")
    worst = 0.0
    for name, part in (("drawn", drawn), ("best", best)):
        rows = theirs[f"{name}.logits"]
        same = rows.isneginf() == part["logits"].isneginf()
        finite = part["logits"].masked_fill(part["logits"].isneginf(), 0.0)
        other = rows.masked_fill(rows.isneginf(), 0.0)
        worst = max(worst, float((finite - other).abs().max() / finite.abs().max()))
        if not bool(same.all()):
            worst = float("inf")
    equal = (theirs["best.tokens"] == best["tokens"]).all(-1)
    return {
        "difference": worst,
        "equal": int(equal.sum()),
        "loops": len(equal),
        "versions": told.stdout.strip().splitlines()[-1],
        "accepted": int(len(drawn["ids"]) - len(PROMPT) - LOOPS),
    }


# Theirs, in the other process: nothing of spsbench is imported.

Score = Callable[[Tensor, Tensor], Tensor]
"""From the ids before a loop and drafted tokens [j], the logits [V] of the place after them."""


def reference(which: str, kind: str, base: Path) -> None:
    given = load_file(base / "given.safetensors")
    for name in ("drawn", "best"):
        TEXTS.append((given[f"{name}.ids"], given[f"{name}.starts"].tolist()))
    score = {
        "speculators": _speculators,
        "dflash": _dflash,
        "transformers": _transformers,
        "generate": _generate,
    }[which](kind, base)
    answers: dict[str, Tensor] = {}
    with torch.inference_mode():
        for name in ("drawn", "best"):
            ids, tokens = given[f"{name}.ids"], given[f"{name}.tokens"]
            rows, greedy = [], []
            for start, drafted in zip(given[f"{name}.starts"].tolist(), tokens, strict=True):
                before, own = ids[:start], drafted[:0]
                rows.append(torch.stack([score(before, drafted[:j]) for j in range(len(drafted))]))
                for _ in range(len(drafted) if name == "best" else 0):
                    own = torch.cat([own, score(before, own).argmax().view(1)])
                greedy.append(own)
            answers[f"{name}.logits"] = torch.stack(rows)
            if name == "best":
                answers["best.tokens"] = torch.stack(greedy)
    save_file(answers, base / "theirs.safetensors")
    from importlib.metadata import PackageNotFoundError, version

    named = []
    for package in ({"generate": "transformers"}.get(which, which), "transformers", "torch"):
        try:
            named.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    print(", ".join(dict.fromkeys(named)))


def _target(base: Path) -> Any:
    from transformers import AutoModelForCausalLM

    target = AutoModelForCausalLM.from_pretrained(base / "target", attn_implementation="eager").eval()
    patterns = getattr(target, "_keys_to_ignore_on_load_unexpected", None) or []
    if any("layers" in pattern for pattern in patterns):
        target._keys_to_ignore_on_load_unexpected = [rf"model\.layers\.{DEPTH}\..*"]
    return target


TEXTS: list[tuple[Tensor, list[int]]] = []
"""Each text, and where its loops began."""


class _Remembered:
    """The target's states along each whole text, of which a loop's are the first ones."""

    def __init__(self, target: Any) -> None:
        self._target = target
        self._known: list[tuple[Tensor, Any]] = []

    def __call__(self, ids: Tensor) -> Any:
        if not self._known:
            for text, _ in TEXTS:
                told = self._target(text[None], output_hidden_states=True, use_cache=False)
                self._known.append((text, told.hidden_states))
        states = next(told for text, told in self._known if torch.equal(text[: len(ids)], ids))
        return [state[:, : len(ids)] for state in states]


class _Once:
    """What a block gives behind a text, for all of its places."""

    def __init__(self, compute: Callable[[Tensor], Any]) -> None:
        self._compute, self._before, self._found = compute, torch.empty(0), None

    def __call__(self, before: Tensor) -> Any:
        if not torch.equal(before, self._before):
            self._before, self._found = before.clone(), self._compute(before)
        return self._found


def _speculators(kind: str, base: Path) -> Score:
    from speculators import SpeculatorModel
    from speculators.config import SpeculatorModelConfig

    config = SpeculatorModelConfig.from_pretrained(str(base / kind))
    config.transformer_layer_config._attn_implementation = "eager"
    model = SpeculatorModel.from_pretrained(str(base / kind), config=config, dtype=torch.float32).eval()
    states = _Remembered(_target(base))
    if kind == "mtp":
        return _speculators_mtp(model, states)
    size = config.block_size
    first = 0 if config.sample_from_anchor else 1

    blocks: dict[bytes, Any] = {}

    def run(text: Tensor, starts: list[int]) -> None:
        """All blocks of a text in one forward, as in training."""
        heard = states(text)
        read = torch.cat([heard[layer] for layer in config.aux_hidden_state_layer_ids], -1)
        n = len(text) + size + 1
        read = torch.nn.functional.pad(read, (0, 0, 0, n - len(text)))
        ids = torch.nn.functional.pad(text, (0, n - len(text)))[None]
        anchors = torch.tensor(starts) - 1
        loss = torch.zeros(1, n).index_fill(1, anchors, 1.0)
        none = torch.zeros(1, n, dtype=torch.int64)
        given = (read, ids, loss, torch.zeros(1, n, WIDTH), none)
        hidden, logits, *_ = model._backbone_forward(*given, max_anchors=len(starts))
        for number, start in enumerate(starts):
            own = slice(number * size, (number + 1) * size)
            blocks[text[:start].numpy().tobytes()] = hidden[:, own], logits[:, own]

    def block(before: Tensor) -> Any:
        if not blocks:
            for text, starts in TEXTS:
                run(text, starts)
        return blocks[before.numpy().tobytes()]

    def score(before: Tensor, drafted: Tensor) -> Tensor:
        hidden, logits = block(before)
        # What stands before each place: the anchor before the first one that drafts.
        path = torch.cat([before[-1:], drafted, torch.zeros(size, dtype=torch.int64)])
        previous = path[:size] if not first else torch.cat([path[:1], path])[:size]
        return _scattered(model, kind, hidden, logits, previous[None], first + len(drafted))

    return score


def _scattered(model: Any, kind: str, hidden: Tensor, logits: Tensor, previous: Tensor, place: int) -> Tensor:
    """[V] the logits of a place, with what a kind adds to those of its layers."""
    if kind == "dspark":
        bias = model.markov_head.block_bias(prev_token_ids=previous, hidden_states=hidden)
        logits = logits + bias
    row = logits[0, place]
    if kind == "dflash2":
        chosen, scores = model.candidate_selector.select(logits, hidden, previous)
        row = torch.full_like(row, float("-inf")).scatter_(0, chosen[0, place], scores[0, place])
    if model.use_draft_vocab:
        kept = torch.arange(len(model.d2t)) + model.d2t
        row = torch.full((V,), float("-inf")).scatter_(0, kept, row)
    return row


def _speculators_mtp(model: Any, states: Any) -> Score:
    from transformers import DynamicCache

    layer = model.mtp_layers[0]

    def score(before: Tensor, drafted: Tensor) -> Tensor:
        ids = torch.cat([before, drafted])
        cache, state = DynamicCache(), states(before[:-1])[-1]
        for place in range(len(drafted) + 1):
            first = 0 if not place else len(before) - 2 + place
            positions = torch.arange(first, len(before) - 1 + place)[None]
            mask = torch.full((positions.shape[1],) * 2, float("-inf")).triu(1)[None, None]
            state = layer(
                hidden_states=state,
                token_embeddings=model.embed_tokens(ids[None, first + 1 : len(before) + place]),
                attention_mask=mask if not place else None,
                position_ids=positions,
                position_embeddings=model.rotary_emb(state, positions),
                past_key_values=cache,
            )
            state = state[:, -1:]
        logits: Tensor = model.lm_head(state)[0, -1]
        return logits

    return score


def _dflash(kind: str, base: Path) -> Score:
    from dflash import model as theirs  # type: ignore[import-not-found]

    cls = theirs.DFlash2DraftModel if kind == "dflash2" else theirs.DFlashDraftModel
    model = cls.from_pretrained(base / kind).eval()
    target = _target(base)
    states = _Remembered(target)

    @_Once
    def block_of(before: Tensor) -> Any:
        context = theirs.extract_context_feature(states(before[:-1]), model.target_layer_ids)
        block = torch.full((1, model.block_size), model.mask_token_id)
        block[0, 0] = before[-1]
        hidden = model(
            target_hidden=context,
            noise_embedding=target.get_input_embeddings()(block),
            position_ids=torch.arange(len(before) - 1 + model.block_size)[None],
        )[:, 1:]
        return hidden, model.compute_logits(hidden, target.lm_head)

    def score(before: Tensor, drafted: Tensor) -> Tensor:
        hidden, logits = block_of(before)
        row: Tensor = logits[0, len(drafted)]
        if kind == "dflash2":
            # Its selector draws inside: the scores of a place are made again of its parts, along our path.
            own = model.candidate_selector
            unary, chosen = torch.topk(logits[0, len(drafted)], own.top_k)
            previous = torch.cat([before[-1:], drafted])[-1]
            wanted = own.predecessor_codebook(previous) * own.hidden_projection(hidden[0, len(drafted)])
            scores = unary + own.successor_codebook(chosen) @ wanted
            row = torch.full_like(row, float("-inf")).scatter_(0, chosen, scores)
        return row

    return score


def _transformers(kind: str, base: Path) -> Score:
    if kind == "assistant":
        return _gemma(base)
    from transformers.cache_utils import MtpCache
    from transformers.modeling_layers import MtpModel

    target = _target(base)
    modules = MtpModel.from_pretrained(target).eval()
    states = _Remembered(target)

    def score(before: Tensor, drafted: Tensor) -> Tensor:
        ids = torch.cat([before, drafted])
        cache, state = MtpCache(config=target.config.get_mtp_config()), states(before[:-1])[-1]
        for place in range(len(drafted) + 1):
            first = 0 if not place else len(before) - 2 + place
            positions = torch.arange(first + 1, len(before) + place)[None]
            state = modules.forward_layer(
                0, state, positions, cache, input_ids=ids[None, first + 1 : len(before) + place]
            )[:, -1:]
        logits: Tensor = modules._project_to_logits(state)[0, -1]
        return logits

    return score


def _gemma(base: Path) -> Score:
    from transformers import DynamicCache, Gemma4AssistantForCausalLM

    target = _target(base)
    assistant = Gemma4AssistantForCausalLM.from_pretrained(base / "assistant").eval()

    @_Once
    def read_of(before: Tensor) -> Any:
        cache = DynamicCache()  # of all tokens: a windowed one forgets
        read = target(before[None, :-1], output_hidden_states=True, past_key_values=cache)
        text = target.config.get_text_config()
        own = text.layer_types[: text.num_hidden_layers - text.num_kv_shared_layers]
        places = {kind: number for number, kind in enumerate(own)}
        seen = {
            kind: (cache.layers[place].keys, cache.layers[place].values) for kind, place in places.items()
        }
        return read, seen

    def score(before: Tensor, drafted: Tensor) -> Tensor:
        read, seen = read_of(before)
        state, token = read.hidden_states[-1][:, -1:], before[None, -1:]
        for place in range(len(drafted) + 1):
            out = assistant(
                inputs_embeds=torch.cat([target.get_input_embeddings()(token), state], -1),
                position_ids=torch.tensor([[len(before) - 1]]),
                shared_kv_states=seen,
            )
            state = out.last_hidden_state
            token = drafted[None, place : place + 1]
        logits: Tensor = out.logits[0, -1]
        return logits

    return score


def _generate(kind: str, base: Path) -> Score:
    """What ``generate(use_mtp=True)`` drafts along its own greedy text, by the length of the text before."""
    from transformers.generation import candidate_generator

    target = _target(base)
    heard: dict[tuple[int, ...], Tensor] = {}
    kept = candidate_generator.MTPCandidateGenerator.get_candidates

    def hearing(self: Any, input_ids: Tensor, *given: Any, **named: Any) -> Any:
        ids, logits = kept(self, input_ids, *given, **named)
        if logits is not None:
            heard[tuple(input_ids[0].tolist())] = logits[0, 0].clone()
        return ids, logits

    candidate_generator.MTPCandidateGenerator.get_candidates = hearing
    target.generate(
        torch.tensor([PROMPT]), use_mtp=True, do_sample=False, max_new_tokens=2 * LOOPS + 4, use_cache=True
    )
    modules = _transformers(kind, base)

    def score(before: Tensor, drafted: Tensor) -> Tensor:
        found = heard.get(tuple(before.tolist()))
        return modules(before, drafted) if found is None else found

    return score


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("cases", nargs="*", default=list(CASES))
    parser.add_argument("--python", required=True)
    parser.add_argument("--once", action="store_true", help="leave out the reading by another convention")
    args = parser.parse_args()
    from spsbench.models.hf_errors import quiet_libraries

    quiet_libraries()
    print("| case | against | largest difference / largest logit | equal greedy drafts | read otherwise |")
    print("|---|---|---|---|---|")
    for name in args.cases:
        case = CASES[name]
        with TemporaryDirectory() as folder:
            target, drafter = write(case, Path(folder))
            found = compared(case, target, drafter, Path(folder), args.python)
            other = ""
            if case.otherwise and not args.once:
                wrong = compared(case, target, f"{drafter}:{case.otherwise}", Path(folder), args.python)
                other = f"{case.otherwise}: {wrong['difference']:.2g}, {wrong['equal']} of {wrong['loops']}"
        print(
            f"| {name} | {found['versions']} | {found['difference']:.1e} |"
            f" {found['equal']} of {found['loops']} ({found['accepted']} accepted) | {other} |",
            flush=True,
        )


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1].startswith("["):
        named: list[str] = json.loads(sys.argv[1])
        reference(named[0], named[1], Path(sys.argv[2]))
    else:
        main()
