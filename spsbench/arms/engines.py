"""Engines by name: the methods that each knows, and what it drafts with."""

from __future__ import annotations

from spsbench.axes import EAGER, MODEL, MODIFIED_REJECTION, OWN_RULE

GRAPHED = "graphed"

ENGINES = {
    EAGER: ("ars", "sps", "draft"),
    GRAPHED: ("ars", "sps", "draft"),
    "hf-generate": ("ars", "draft"),
    "hf-assisted": ("sps",),
    "hf-prompt-lookup": ("sps",),
}
"""The methods that each engine knows. One that knows a method only in part is not listed with it."""

FIXED_DRAFTING = {
    GRAPHED: (MODEL, MODIFIED_REJECTION),
    "hf-assisted": (MODEL, MODIFIED_REJECTION),
    "hf-prompt-lookup": ("lookup", "sample-and-compare"),
}
"""Drafter and rule of the engines that have but one of each."""

PEER_METHODS = ("ars", "sps")
"""What an engine of others is asked for: it is given a target, perhaps a draft, and has a rule of its own."""

PEER_DRAFTING = (MODEL, OWN_RULE)

BATCHED = (EAGER, GRAPHED)
"""Engines that decode several sequences at once."""
