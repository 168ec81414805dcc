#!/usr/bin/env bash
# transformers 5.24.0: sampled text with an assistant of another tokenizer does not follow the target.
#
# The rows of the assistant are pruned to the tokens that both tokenizers have, in the order of get_vocab(), which
# is arbitrary; they are told to the acceptance test as if they were in the order of the assistant's ids. So a token
# is drawn with one probability and judged by another's. Greedy text is not touched, since no row is judged then.
# Printed: the total variation of 1,000 first tokens from the target's row, and from the law that follows from the
# order; and the first with the tokens of both put in the order of their ids, which is the mend.
# Random Llamas of 8 and 10 tokens, K = 1, temperature 1. Seen 2026-11-30 on a CPU, torch 2.13.0. Exits 0 while so.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.24.0 numpy==2.4.6
HF_HUB_OFFLINE=1 "$work/venv/bin/python" - <<'PYTHON'
import copy

import tokenizers
import torch
import transformers
from transformers.generation import candidate_generator as assisted

transformers.logging.set_verbosity_error()
BOTH, DRAWS = "abcdefgh", 1000
Translator = assisted.AssistantToTargetTranslator
released = Translator._get_assistant_to_target_input_ids


def ordered(self):
    there, back = released(self)
    return there, dict(sorted(back.items(), key=lambda both: both[1]))


def tokenizer(words):
    core = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="a"))
    core.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=core)


def model(size, seed):
    torch.manual_seed(seed)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"vocab_size": size, "initializer_range": 0.5, "bos_token_id": None, "eos_token_id": None}
    made = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).eval()
    made.generation_config = transformers.GenerationConfig(pad_token_id=0)
    return made


target, words = model(len(BOTH), 1), (tokenizer(BOTH), tokenizer("x" + BOTH[::-1] + "y"))
prompt = torch.tensor([[0, 3, 5, 1]])
with torch.inference_mode():
    q = target(prompt).logits[0, -1].double().softmax(-1)


def shares():
    """Shares of the first token, and the law that follows from the order of the pruned rows."""
    assisted.AssistantVocabTranslatorCache._cache.clear()
    draft = model(len(BOTH) + 2, 2)
    with torch.inference_mode():
        row = draft(words[1](words[0].decode(prompt[0]), return_tensors="pt")["input_ids"]).logits[0, -1].double()
    draft.generation_config.num_assistant_tokens = 1
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    draft.generation_config.assistant_confidence_threshold = 0.0
    kept, found = copy.deepcopy(draft.generation_config), torch.zeros(len(q))
    for seed in range(DRAWS):
        torch.manual_seed(seed)
        draft.generation_config = copy.deepcopy(kept)
        given = {"assistant_model": draft, "tokenizer": words[0], "assistant_tokenizer": words[1]}
        given |= {"attention_mask": torch.ones_like(prompt)}
        text = target.generate(prompt, do_sample=True, top_k=0, max_new_tokens=2, **given)
        found[text[0, prompt.shape[1]]] += 1 / DRAWS
    back = next(iter(next(iter(assisted.AssistantVocabTranslatorCache._cache.values())).values()))
    written = list(back.target_to_assistant_input_ids.values())  # the draft's ids, in the order of the pruned rows
    there = back._assistant_to_target_input_ids.tolist()
    drawn = row[written].softmax(-1)
    told = torch.zeros(len(q)).double()
    told[[there[each] for each in sorted(written)]] = drawn
    accepted = torch.zeros(len(q)).double()
    for place, each in enumerate(written):
        accepted[there[each]] = drawn[place] * min(1.0, float(q[there[each]] / told[there[each]]))
    residual = (q - told).clamp(min=0)
    return found, accepted + (1 - accepted.sum()) * residual / residual.sum()


def apart(one, other):
    return float((one - other).abs().sum() / 2)


seen, law = shares()
Translator._get_assistant_to_target_input_ids = ordered
mended, _ = shares()
print("transformers", transformers.__version__)
print(f"total variation from the target: {apart(seen, q):.3f}; from the law of the wrong order: {apart(seen, law):.3f}")
print(f"that law's from the target: {apart(law, q):.3f}; in the order of ids: {apart(mended, q):.3f}")
assert apart(seen, q) > 0.15 and apart(seen, law) < 0.08 and apart(mended, q) < 0.08
PYTHON
