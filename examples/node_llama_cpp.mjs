// node-llama-cpp as a worker of the engine protocol (docs/engine-protocol.md), in JavaScript.
//
//     npm install node-llama-cpp@3.22.1
//     spsbench audit --engine 'worker:node examples/node_llama_cpp.mjs target.gguf draft.gguf' \
//         --target target.gguf --draft draft.gguf
//
// One JSON object a line: `describe`, `generate` and `bye`. The library is looked for where the worker is
// started, or given as --library FILE. Its rule is sample-and-compare: the target draws every token itself,
// and a drafted one is kept where it is the same.

import { randomInt } from "node:crypto";
import { createRequire } from "node:module";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";
import { parseArgs } from "node:util";

const PROTOCOL = 1;
const PROCESSORS = {
  min_p: 0,
  typical_p: 1,
  repetition_penalty: 1,
  presence_penalty: 0,
  frequency_penalty: 0,
  min_new_tokens: 0,
};
const LISTS = ["logit_bias", "bad_words", "grammar"];

console.log = console.info = console.error; // standard output is the protocol's alone

const { values: given, positionals: files } = parseArgs({
  options: { library: { type: "string" } },
  allowPositionals: true,
});

class Engine {
  // Loads what `describe` asks for; the files are those of the command.
  static async load(asked) {
    if (asked.protocol !== PROTOCOL) throw new Error(`protocol ${asked.protocol} is not ${PROTOCOL}`);
    if (asked.draft != null && files.length < 2) throw new Error("no draft.gguf stands behind target.gguf");
    const found = given.library ?? createRequire(join(process.cwd(), "/")).resolve("node-llama-cpp");
    const library = await import(pathToFileURL(found).href);
    const logger = (level, message) => console.error(`${level}: ${message}`);
    const maxThreads = asked.threads ?? 0;
    const llama = await library.getLlama({ gpu: false, build: "never", logger, maxThreads });
    const engine = new Engine();
    Object.assign(engine, { asked, library, llama, release: await library.getModuleVersion() });
    engine.target = await engine.context(files[0]);
    engine.draft = asked.draft == null ? null : await engine.context(files[1]);
    return engine;
  }

  async context(modelPath) {
    const model = await this.llama.loadModel({ modelPath });
    return await model.createContext({
      contextSize: this.asked.context,
      threads: this.asked.threads ?? undefined,
      flashAttention: false,
      experimentalKvCacheKeyType: "F32",
      experimentalKvCacheValueType: "F32",
    });
  }

  describe() {
    const { model } = this.target;
    const isFloat32 = /all F32/.test(model.typeDescription ?? "");
    return {
      protocol: PROTOCOL,
      engine: "node-llama-cpp",
      version: `${this.release}, llama.cpp ${this.llama.llamaCppRelease.release}`,
      vocab_size: model.fileInfo.metadata.tokenizer?.ggml?.tokens?.length ?? null,
      rule: this.draft == null ? null : "sample-and-compare",
      settings: {
        dtype: isFloat32 ? "float32" : null,
        kv_dtype: "float32",
        dynamic_quantisation: isFloat32 ? false : null,
        prefix_cache: false,
        threads: this.asked.threads,
        top_p: "smallest set of that mass",
        sampler_order: "top_k, top_p, temperature",
      },
      limits: [
        "Its nucleus is of the logits before the temperature.",
        "It does not tell its loops, and the draft reads its prompt within the time of decoding.",
      ],
    };
  }

  async generate(ask) {
    const { sampling, prompt_ids: prompt } = ask;
    const foreign = Object.entries(PROCESSORS)
      .filter(([name, off]) => (sampling[name] ?? off) !== off)
      .map(([name]) => name);
    foreign.push(...LISTS.filter((name) => Object.keys(sampling[name] ?? {}).length > 0));
    if (foreign.length > 0) throw new Error(`cannot: this worker has no ${foreign.join(", ")}`);
    const began = performance.now();
    const tokenPredictor = this.predictor();
    const sequence = this.target.getSequence({ tokenPredictor }); // a new one keeps nothing of other requests
    try {
      if (prompt.length > 1) await sequence.evaluateWithoutGeneratingNewTokens(prompt.slice(0, -1));
      const prefilled = performance.now();
      const options = {
        temperature: sampling.greedy ? 0 : sampling.temperature,
        topK: sampling.top_k,
        topP: sampling.top_p,
        minP: 0,
        seed: ask.seed ?? randomInt(2 ** 31), // without one it takes the second of the clock
        yieldEogToken: true, // a text without the token that ends it would be biased
      };
      const ids = [];
      const stops = new Set(ask.stop_ids);
      for await (const token of sequence.evaluate(prompt.slice(-1), options)) {
        ids.push(token);
        if (stops.has(token) || ids.length === ask.max_new_tokens) break;
      }
      const ended = performance.now();
      return {
        output_ids: ids,
        finish: stops.has(ids.at(-1)) ? "stop" : "length",
        prefill_ms: prefilled - began,
        decode_ms: ended - prefilled,
        wall_ms: ended - began,
        decoded: ids.length,
        ...this.counts(sequence, ids),
      };
    } finally {
      await sequence.dispose();
      await tokenPredictor?.draftSequence.dispose();
    }
  }

  predictor() {
    if (this.draft == null) return undefined;
    const { k } = this.asked;
    const always = { minTokens: k, maxTokens: k, minConfidence: 0 }; // K tokens, however unsure the draft is
    return new this.library.DraftSequenceTokenPredictor(this.draft.getSequence(), always);
  }

  counts(sequence, ids) {
    if (this.draft == null) return { loops: ids.length };
    const { validated, refuted } = sequence.tokenPredictions;
    return { drafted: validated + refuted, accepted: validated };
  }
}

let engine = null;

async function answered(method, params) {
  if (method === "bye") return null;
  if (method === "describe") {
    engine = await Engine.load(params);
    return engine.describe();
  }
  if (method !== "generate") throw new Error(`${method} is no method of this worker`);
  if (engine == null) throw new Error("`describe` comes first");
  return await engine.generate(params);
}

for await (const line of createInterface({ input: process.stdin })) {
  const { id, method, params } = JSON.parse(line);
  let answer;
  try {
    answer = { id, result: await answered(method, params) };
  } catch (error) {
    console.error(error);
    answer = { id, error: String(error.message).split("\n")[0] };
  }
  process.stdout.write(`${JSON.stringify(answer)}\n`);
  if (method === "bye") break;
}
process.exit(0);
