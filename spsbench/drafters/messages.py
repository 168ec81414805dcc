"""What is said of drafters: how releases of engines read a trained drafter's folder."""

from __future__ import annotations

from collections.abc import Sequence

from spsbench.base.messages import Message

OWN_LAYOUT = "its layout is spsbench's own"
NO_READER = "no reader of this kind was found"
AS_WRITER = "as its writer does"

# EAGLE-3 and P-EAGLE.

STATE_AFTER_LAYER = "id k is the state after k + 1 layers, for Llama, Qwen and most others"
IDS_AT_TOP = "ids outside of eagle_config are not read: the default 2, n//2, n-3"
IDS_NESTED = "ids inside eagle_config are not read: the default 2, n//2, n-3"
RESIDUAL_UNREAD = "norm_before_residual is not read"
RESIDUAL_TRUE = "a missing norm_before_residual is read as true"
LATER_NORMS = "layers from 1 on apply hidden_norm in place of input_layernorm"
OUTPUT_NORM_UNREAD = "norm_output is not read"
FC_NORM_UNREAD = "fc_norm is not read"
FC_NORM_DROPPED = "fc_norm is not passed on from a P-EAGLE configuration (0.32.0, run)"
SIZED_FOR_STATES = "without num_aux_hidden_states a layer of Llama is sized for 3 states (0.32.0, run)"

# Blocks.

BLOCK_OF_K = "a draft of K tokens is a block of as many masks, not of block_size"
ANCHOR_FALSE = "a missing sample_from_anchor is read as false"
ALL_CAUSAL = "sliding_window_non_causal false makes every layer causal"
AUTHORS_IDS_WANTED = "it looks for target_layer_ids, the authors' layout"
ANCHOR_OF_CONVERTER = "the anchor's convention is set when the file is converted"
UNIFORM_ROWS = (
    "with draft_sample_method=probabilistic, greedy drafts are verified against a uniform row: not lossless"
)

# Prediction modules.

MODULES_AGAIN = "after the last module it starts again with the first"
FIRST_MODULE = "it reads the first module alone, and its state after the norm"
BEFORE_NORM = "a module reads the state before its norm"
AFTER_NORM = "a module reads the state after its norm"
AS_MANY_AS_MODULES = "as many tokens as modules"
HEAD_OF_TARGET = "the target's head in place of each module's own"
UNNORMED = (
    "its state goes to the head without the target's final norm, and a prompt's first entry has no token"
)
UNNORMED_HALVES = f"{UNNORMED}; its attention rotates halves where the target's rotates pairs"
MODULES_LEFT_OUT = "its converter leaves the modules out"
MEAN_SUBTRACTED = "the module's final norm subtracts the mean"

# Assistants.

LAST_POSITION = "drafts are positioned at the last token read, not at the pending one"
NO_OWN_KEYS = "ValueError: its configuration looks for a layer with keys and values of its own"


class VanillaMarkovOnly(Message):
    markov: str
    sentence = "its Markov head is {markov}; the vanilla one alone is read"


class NoModuleCount(Message):
    """transformers loads the modules that a configuration counts under this name."""

    model_type: str
    sentence = "{model_type} has no num_mtp_layers there: modules are not loaded"


class OneModuleOnly(Message):
    modules: int
    sentence = "it reads one module, and these are {modules}"


class Differences(Message):
    of: Sequence[str]

    def __str__(self) -> str:
        return "; ".join(self.of) or AS_WRITER
