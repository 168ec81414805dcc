"""What target and draft answer to the task data, and how often the draft would have been accepted.

Plain batched ``generate()`` on any device, independent of the benchmark's own decoding, so that the
gates of the mini pair do not rest on the code that they are shown with. Acceptance needs no
speculative loop: given a token x that the target emitted, a draft offered there was accepted with
probability min(1, draft(x) / target(x)) (Chen et al. 2023, Theorem 1), so loops can be drawn after the
fact.
"""

from __future__ import annotations

import argparse
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedTokenizerFast, TemperatureLogitsWarper, TopPLogitsWarper

from training.model import load
from training.news import ARTICLE, exemplar
from training.train import device_name

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

ROWS = 100
CODE_STOPS = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")


@dataclass(frozen=True)
class Sampling:
    """Temperature and nucleus; temperature 0 is greedy."""

    temperature: float
    top_p: float


@dataclass(frozen=True)
class Job:
    """Prompts of one task with its default sampling, length limit and stop strings."""

    name: str
    prompts: list[str]
    sampling: Sampling
    max_new_tokens: int
    stops: tuple[str, ...]


GREEDY = Sampling(0.0, 1.0)


def news_job(data: Path, name: str = "xsum") -> Job:
    """The 1-shot summaries; each document gets an exemplar drawn from the training file."""
    shown = _rows(data / "xsum_train.jsonl")
    rng = random.Random(0)
    prompts = []
    for row in _rows(data / f"{name}.jsonl"):
        example = rng.choice(shown)
        head = exemplar(example["document"], example["summary"])
        prompts.append(head + ARTICLE.format(document=row["document"]))
    return Job(name, prompts, Sampling(1.0, 0.8), 128, ("\n",))


def code_job(file: Path) -> Job:
    """The programs; prompts are the raw field."""
    return Job(file.stem, [row["prompt"] for row in _rows(file)], Sampling(0.8, 0.95), 200, CODE_STOPS)


def _rows(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def generate(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, job: Job, sampling: Sampling, seed: int
) -> list[list[int]]:
    """Emitted tokens for each prompt, with EOS or the token that completes a stop string."""
    torch.manual_seed(seed)
    prompts = [tokenizer.encode(prompt) for prompt in job.prompts]
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    emitted: dict[int, list[int]] = {}
    for begin in range(0, len(order), ROWS):
        rows = order[begin : begin + ROWS]
        outputs = _generate_rows(model, [prompts[row] for row in rows], job, sampling)
        for row, output in zip(rows, outputs, strict=True):
            emitted[row] = _until_stop(output, tokenizer, job.stops)
    return [emitted[index] for index in range(len(prompts))]


def _generate_rows(
    model: LlamaForCausalLM, prompts: list[list[int]], job: Job, sampling: Sampling
) -> list[list[int]]:
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    how: dict[str, Any] = {"do_sample": False}
    if sampling.temperature > 0:
        how = {"do_sample": True, "top_k": 0, "top_p": sampling.top_p, "temperature": sampling.temperature}
    with torch.inference_mode():
        outputs = model.generate(
            input_ids=ids.to(model.device),
            attention_mask=mask.to(model.device),
            max_new_tokens=job.max_new_tokens,
            **how,
        )
    return outputs[:, width:].tolist()  # type: ignore[no-any-return]


def _until_stop(tokens: list[int], tokenizer: PreTrainedTokenizerFast, stops: tuple[str, ...]) -> list[int]:
    if tokenizer.eos_token_id in tokens:
        tokens = tokens[: tokens.index(tokenizer.eos_token_id) + 1]
    if not any(stop in tokenizer.decode(tokens) for stop in stops):
        return tokens
    for end in range(1, len(tokens) + 1):
        if any(stop in tokenizer.decode(tokens[:end]) for stop in stops):
            return tokens[:end]
    return tokens


def text_of(tokens: list[int], tokenizer: PreTrainedTokenizerFast, stops: tuple[str, ...]) -> str:
    """The output's text before EOS and the first stop string."""
    text: str = tokenizer.decode([token for token in tokens if token != tokenizer.eos_token_id])
    return text[: min((text.index(stop) for stop in stops if stop in text), default=len(text))]


@dataclass(frozen=True)
class Agreement:
    """A draft beside the target on the target's own text, one list for each answer.

    Attributes:
        chances: for each emitted token x the chance min(1, draft(x) / target(x)).
        overlaps: for each place the chance before x is known, sum over x of min(target(x), draft(x)).
    """

    chances: list[list[float]]
    overlaps: list[list[float]]

    @property
    def alpha(self) -> float:
        """The mean acceptance over all emitted tokens."""
        return sum(map(sum, self.overlaps)) / sum(map(len, self.overlaps))


def acceptance(
    target: LlamaForCausalLM,
    drafts: dict[str, LlamaForCausalLM],
    prompts: list[list[int]],
    emitted: list[list[int]],
    sampling: Sampling,
) -> dict[str, Agreement]:
    """How drafts agree with the target on what it emitted, by draft."""
    found = {name: Agreement([], []) for name in drafts}
    for prompt, tokens in zip(prompts, emitted, strict=True):
        chosen = torch.tensor(tokens, device=target.device)[:, None]
        wanted = _distributions(target, prompt, tokens, sampling)
        for name, draft in drafts.items():
            offered = _distributions(draft, prompt, tokens, sampling)
            shares = offered.gather(1, chosen) / wanted.gather(1, chosen).clamp_min(1e-9)
            found[name].chances.append(shares[:, 0].clamp_max(1.0).tolist())
            found[name].overlaps.append(torch.minimum(wanted, offered).sum(-1).tolist())
    return found


def _distributions(
    model: LlamaForCausalLM, prompt: list[int], tokens: list[int], sampling: Sampling
) -> torch.Tensor:
    """What the model draws each of ``tokens`` behind the prompt from, [n, V]."""
    ids = torch.tensor([prompt + tokens[:-1]], device=model.device)
    with torch.inference_mode():
        return warped(model(input_ids=ids, logits_to_keep=len(tokens)).logits[0], sampling)


def warped(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Logits [n, V] as the distribution that is sampled, by transformers' own warpers."""
    if sampling.temperature == 0:
        return torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).float()
    empty = torch.empty(0, 0, dtype=torch.long)
    logits = TemperatureLogitsWarper(sampling.temperature)(empty, logits.float())
    kept: torch.Tensor = TopPLogitsWarper(sampling.top_p)(empty, logits)
    return kept.softmax(-1)


def r_prime(chances: list[list[float]], k: int, seed: int = 0) -> float:
    """sum(accepted + 1) / (loops (k + 1)) of loops drawn over the emitted tokens.

    Counts what is accepted before truncation by the end of the text only as far as the text goes.
    """
    rng = random.Random(seed)
    loops = produced = 0
    for row in chances:
        position = 0
        while position < len(row):
            accepted = 0
            while accepted < k and position + accepted < len(row):
                if rng.random() >= row[position + accepted]:
                    break
                accepted += 1
            loops += 1
            position += accepted + 1
            produced += accepted + 1
    return produced / (loops * (k + 1))


def main() -> None:
    """Answers of a target and drafts to every job, as one JSON file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--drafts", type=Path, nargs="*", default=[])
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--code", type=Path, nargs="*", default=[])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", nargs="*", help="only these, e.g. xsum humaneval")
    parser.add_argument("--limit", type=int, help="only the first prompts of each job")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    a = parser.parse_args()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(a.tokenizer)
    target = load(a.target, a.device)
    drafts = {folder.name: load(folder, a.device) for folder in a.drafts}
    jobs = [news_job(a.data), news_job(a.data, "xsum_unseen_templates"), code_job(a.data / "humaneval.jsonl")]
    result = [
        _answer(job, sampling, target, drafts, tokenizer, a.limit)
        for job in [*jobs, *map(code_job, a.code)]
        if not a.jobs or job.name in a.jobs
        for sampling in (GREEDY, job.sampling)
    ]
    a.out.write_text(json.dumps(result))


def _answer(
    job: Job,
    sampling: Sampling,
    target: LlamaForCausalLM,
    drafts: dict[str, LlamaForCausalLM],
    tokenizer: PreTrainedTokenizerFast,
    limit: int | None,
) -> dict[str, Any]:
    job = Job(job.name, job.prompts[:limit], job.sampling, job.max_new_tokens, job.stops)
    emitted = generate(target, tokenizer, job, sampling, seed=0)
    prompts = [tokenizer.encode(prompt) for prompt in job.prompts]
    texts = {"target": [text_of(tokens, tokenizer, job.stops) for tokens in emitted]}
    shares, alphas = {}, {}
    for name, draft in drafts.items():
        answers = generate(draft, tokenizer, job, sampling, seed=0)
        texts[name] = [text_of(tokens, tokenizer, job.stops) for tokens in answers]
    # The gates ask for acceptance under default sampling alone.
    found = {} if sampling == GREEDY else acceptance(target, drafts, prompts, emitted, sampling)
    for name, agreement in found.items():
        alphas[name] = agreement.alpha
        shares[name] = {k: r_prime(agreement.chances, k) for k in range(1, 8)}
        shown = {k: round(share, 3) for k, share in shares[name].items()}
        print(f"{job.name} {sampling} {name} alpha {agreement.alpha:.3f} r' {shown}", flush=True)
    lengths = [len(tokens) for tokens in emitted]
    return {
        "job": job.name,
        "device": device_name(str(target.device)),
        "greedy": sampling == GREEDY,
        "texts": texts,
        "alpha": alphas,
        "r_prime": shares,
        "lengths": lengths,
        "prompt_lengths": [len(prompt) for prompt in prompts],
    }


if __name__ == "__main__":
    main()
