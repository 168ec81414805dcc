#!/usr/bin/env bash
# node-llama-cpp 3.22.1: requests without a seed draw the same text if they begin in the same second.
#
# The default seed is the clock in whole seconds. Three requests at temperature 1 with one prompt, sent one after
# the other within a second, are one sample three times; two seconds later it is another one. Who estimates a
# spread from short requests, or answers several users of one prompt, sees one draw. Explicit seeds differ.
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
import { setTimeout as sleep } from "node:timers/promises";
import { LlamaLogLevel, getLlama, getModuleVersion } from "node-llama-cpp";

const llama = await getLlama({ gpu: false, build: "never", logLevel: LlamaLogLevel.error, maxThreads: 1 });
const model = await llama.loadModel({ modelPath: "model.gguf" });
const context = await model.createContext({ contextSize: 256 });
const sequence = context.getSequence();

async function written(seed) {
  await sequence.clearHistory();
  const ids = [];
  const options = { temperature: 1, topK: 0, topP: 1, seed, yieldEogToken: true };
  for await (const token of sequence.evaluate([5, 20, 31, 44, 7], options)) {
    ids.push(token);
    if (ids.length === 12) break;
  }
  return ids.join(" ");
}

async function thrice(seeds) {
  await sleep(2000 - (Date.now() % 1000)); // a second has begun
  const second = Math.floor(Date.now() / 1000);
  const texts = [];
  for (const seed of seeds) texts.push(await written(seed));
  assert.equal(Math.floor(Date.now() / 1000), second, "this machine is too slow to show it");
  return texts;
}

await written(1); // the first request is slow
const none = [undefined, undefined, undefined];
const seen = { "in one second": await thrice(none), "in a later one": await thrice(none), "with seeds": await thrice([1, 2, 3]) };
console.log(`node-llama-cpp ${await getModuleVersion()}`);
for (const [said, texts] of Object.entries(seen)) console.log(`${said}:\n  ${texts.join("\n  ")}`);
const [first, later, seeded] = Object.values(seen);
assert.equal(new Set(first).size, 1);
assert.equal(new Set(later).size, 1);
assert.notEqual(first[0], later[0]);
assert.equal(new Set(seeded).size, 3);
process.exit(0);
JAVASCRIPT
node "$work/seen.mjs"
