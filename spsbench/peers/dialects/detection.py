"""Which kind of server answers."""

from __future__ import annotations

from typing import Any

from spsbench.peers.dialects.dialect import Dialect, part, token_ids, whole
from spsbench.peers.dialects.llama_cpp import LlamaCpp
from spsbench.peers.dialects.openai import OpenAi
from spsbench.peers.dialects.sglang import Sglang
from spsbench.peers.dialects.vllm import Vllm
from spsbench.peers.http import Http
from spsbench.peers.peer import PeerError, PeerGone
from spsbench.peers.protocol import shortened
from spsbench.peers.texts import Texts


def detected(http: Http, model: str | None, texts: Texts | None) -> Dialect:
    """The dialect of a server and of one model that it serves."""
    props = http.find("/props")
    cards = _cards(http)
    if props is not None and "default_generation_settings" in props:
        return LlamaCpp(props, whole(part(cards[0], "meta", "n_vocab")))
    info = http.find("/get_server_info") or http.find("/server_info")
    if info is not None and "version" in info:
        return Sglang(info)
    name = _chosen(cards, model)
    version = str((http.find("/version") or {}).get("version", "unknown"))
    if cards[0].get("owned_by") == "vllm":
        return Vllm(name, version)
    return _openai(http, name, version, texts)


def _cards(http: Http) -> list[dict[str, Any]]:
    """What ``/v1/models`` lists."""
    found = http.get("/v1/models")
    cards = found.get("data") if isinstance(found, dict) else None
    if not (isinstance(cards, list) and cards and all(isinstance(each, dict) for each in cards)):
        raise PeerError(f"{http.root}/v1/models lists no model: {shortened(repr(found))}")
    return cards


def _chosen(cards: list[dict[str, Any]], model: str | None) -> str:
    """The name of the model that is meant. An adapter of vLLM names its model as its parent."""
    names = [str(card.get("id")) for card in cards]
    if model in names:
        return str(model)
    if model is None and len([card for card in cards if not card.get("parent")]) == 1:
        return names[0]
    asked = "no model is named" if model is None else f"{model!r} is not served"
    raise PeerGone(f"{asked}; it serves {', '.join(names)}: choose with :model=NAME")


def _openai(http: Http, model: str, version: str, texts: Texts | None) -> Dialect:
    """A server that is known by its answer to one token: which fields it takes and gives."""
    probe = {"model": model, "prompt": [0], "max_tokens": 1, "temperature": 0.0, "return_token_ids": True}
    found = http.accepts("/v1/completions", probe)
    if found is not None and isinstance(part(found, "choices", 0, "token_ids"), list):
        token_ids(part(found, "choices", 0, "token_ids"), "choices[0].token_ids")
        return Vllm(model, version)
    ids_in = found is not None and part(found, "usage", "prompt_tokens") in (None, 1)
    info = http.find("/info") or {}
    engine = "TGI" if "model_id" in info and "max_total_tokens" in info else "OpenAI API"
    return OpenAi(model, engine, str(info.get("version", version)), texts, ids_in=ids_in)
