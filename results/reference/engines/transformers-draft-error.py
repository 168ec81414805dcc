"""Generate with a draft model in transformers: 5.15.0 and 5.15.1 end in an error, 4.45.0 and 5.24.0 do not.

    python transformers-draft-error.py

Target and draft are small, of random weights. Needs transformers and PyTorch alone.
"""

import torch
import transformers


def model(seed: int) -> transformers.LlamaForCausalLM:
    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.LlamaConfig(vocab_size=64, max_position_embeddings=256, **sizes)
    made = transformers.LlamaForCausalLM(config).eval()
    made.generation_config = transformers.GenerationConfig(pad_token_id=0)
    return made


target, draft = model(0), model(1)
draft.generation_config.num_assistant_tokens = 4
draft.generation_config.num_assistant_tokens_schedule = "constant"
draft.generation_config.assistant_confidence_threshold = 0.0
prompt = torch.arange(1, 41)[None]
asked = transformers.GenerationConfig(max_new_tokens=20, do_sample=False, pad_token_id=0)
try:
    found = target.generate(prompt, generation_config=asked, assistant_model=draft)
    print(f"transformers {transformers.__version__}: {found.shape[1] - prompt.shape[1]} tokens")
except RuntimeError as error:
    print(f"transformers {transformers.__version__}: {error}")
