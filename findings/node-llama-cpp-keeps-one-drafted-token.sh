#!/usr/bin/env bash
# node-llama-cpp 3.22.1: of the tokens that a token predictor proposes at once, one at most is kept.
#
# A predictor here knows the greedy text and proposes its next four tokens each time. All are right, and each pass
# over the target could keep four. The first is validated and the other three are refuted, so that 24 tokens take
# 12 passes or more and not 5: the rows of the others are compared with a list that nothing is put into. The
# text is the same, so nothing but speed shows it; sequence.tokenPredictions counts it.
# Seen 2026-11-29 on a CPU, with the prebuilt binary. Exits 0 while that is so. node 20 or newer is needed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet gguf==0.19.0 numpy==2.4.6
cd "$work"
npm install --silent --no-audit --no-fund node-llama-cpp@3.22.1 >/dev/null
"$work/venv/bin/python" - <<'PYTHON'
import gguf
import numpy as np

rng = np.random.default_rng(0)
width, inner, heads, size = 64, 96, 2, 258
letters = [chr(0x100 + n) for n in range(size - 2)]
out = gguf.GGUFWriter("model.gguf", "llama")
out.add_context_length(256)
out.add_embedding_length(width)
out.add_block_count(2)
out.add_feed_forward_length(inner)
out.add_head_count(heads)
out.add_head_count_kv(heads)
out.add_layer_norm_rms_eps(1e-5)
out.add_rope_dimension_count(width // heads)
out.add_vocab_size(size)
out.add_tokenizer_model("gpt2")
out.add_tokenizer_pre("gpt-2")
out.add_token_list([*letters, "<s>", "</s>"])
out.add_token_types([1] * (size - 2) + [3, 3])
out.add_token_merges([f"{letters[0]} {letters[1]}"])
out.add_bos_token_id(size - 2)
out.add_eos_token_id(size - 1)
shapes = {"token_embd": (size, width)}
for n in range(2):
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        shapes[f"blk.{n}.{name}"] = (width, width)
    shapes |= {f"blk.{n}.ffn_gate": (inner, width), f"blk.{n}.ffn_up": (inner, width)}
    shapes[f"blk.{n}.ffn_down"] = (width, inner)
for name, shape in shapes.items():
    out.add_tensor(f"{name}.weight", rng.normal(0, 0.3, shape).astype(np.float32))
for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "blk.1.attn_norm", "blk.1.ffn_norm", "output_norm"):
    out.add_tensor(f"{name}.weight", np.ones(width, np.float32))
out.write_header_to_file()
out.write_kv_data_to_file()
out.write_tensors_to_file()
out.close()
PYTHON
cat > "$work/seen.mjs" <<'JAVASCRIPT'
import { strict as assert } from "node:assert";
import { LlamaLogLevel, TokenPredictor, getLlama, getModuleVersion } from "node-llama-cpp";

const PROMPT = [5, 20, 31, 44, 7];
const TOKENS = 24;
const llama = await getLlama({ gpu: false, build: "never", logLevel: LlamaLogLevel.error, maxThreads: 1 });
const model = await llama.loadModel({ modelPath: "model.gguf" });
const context = await model.createContext({ contextSize: 256, sequences: 2 });

async function written(sequence) {
  const ids = [];
  for await (const token of sequence.evaluate(PROMPT, { temperature: 0, yieldEogToken: true })) {
    ids.push(token);
    if (ids.length === TOKENS) break;
  }
  return ids;
}

const text = await written(context.getSequence());

class Knows extends TokenPredictor {
  known = 0;
  proposals = 0;
  reset() {
    this.known = 0;
  }
  pushTokens(tokens) {
    this.known += tokens.length;
  }
  predictTokens() {
    this.proposals += 1;
    return text.slice(this.known, this.known + 4);
  }
}

const tokenPredictor = new Knows();
const sequence = context.getSequence({ tokenPredictor });
assert.deepEqual(await written(sequence), text);
const { validated, refuted } = sequence.tokenPredictions;
console.log(`node-llama-cpp ${await getModuleVersion()}: ${tokenPredictor.proposals} proposals of up to 4 tokens, all right`);
console.log(`${validated} tokens validated, ${refuted} refuted`);
assert.ok(tokenPredictor.proposals >= TOKENS / 2, "more than one token of a proposal was kept");
assert.ok(validated <= tokenPredictor.proposals);
assert.ok(refuted >= 2 * validated);
process.exit(0);
JAVASCRIPT
node "$work/seen.mjs"
