// What examples/node_llama_cpp.mjs uses of node-llama-cpp, over a model that counts by 1 or, drawn, by 2.
//
// Files are named after what they do: "chatty" calls console.log while it is loaded, "broken" cannot be loaded.

const SIZE = 100;
export const getModuleVersion = async () => "0.0.0";

export class DraftSequenceTokenPredictor {
  constructor(draftSequence, options) {
    Object.assign(this, { draftSequence, options });
  }
}

class Sequence {
  constructor(context, tokenPredictor) {
    Object.assign(this, { context, tokenPredictor, read: [], disposed: false });
    this.tokenPredictions = { validated: 0, refuted: 0 };
  }

  async evaluateWithoutGeneratingNewTokens(tokens) {
    this.read.push(...tokens);
  }

  async *evaluate(tokens, options) {
    this.read.push(...tokens);
    console.log("sequence", JSON.stringify(options));
    let state = options.seed;
    while (true) {
      state = (1103515245 * state + 12345) % 2 ** 31;
      const step = options.temperature === 0 ? 1 : 1 + (state > 2 ** 30);
      this.read.push((this.read.at(-1) + step) % SIZE);
      if (this.tokenPredictor != null) this.tokenPredictions[step === 1 ? "validated" : "refuted"] += 1;
      yield this.read.at(-1);
    }
  }

  async dispose() {
    if (this.disposed) throw new Error("disposed twice");
    this.disposed = true;
    this.context.sequences -= 1;
  }
}

class Context {
  constructor(model) {
    Object.assign(this, { model, sequences: 0 });
  }

  getSequence({ tokenPredictor } = {}) {
    if (this.sequences > 0) throw new Error("No sequences left");
    this.sequences += 1;
    return new Sequence(this, tokenPredictor);
  }
}

class Model {
  typeDescription = "counting all F32";
  fileInfo = { metadata: { tokenizer: { ggml: { tokens: Array(SIZE).fill("") } } } };

  async createContext() {
    return new Context(this);
  }
}

export async function getLlama() {
  return {
    llamaCppRelease: { release: "none" },
    async loadModel({ modelPath }) {
      if (modelPath === "broken") throw new Error("it is no GGUF file\nand more");
      if (modelPath === "chatty") console.log("loading");
      return new Model();
    },
  };
}
