from __future__ import annotations

import random
import re

import pytest

from training.news import News, completion, exemplar, make_news
from training.news_templates import EVENTS, UNSEEN_FATES
from training.split import part_of


def draws(part: str, count: int, **options: bool) -> list[News]:
    rng = random.Random(7)
    return [make_news(part, rng, **options) for _ in range(count)]  # type: ignore[arg-type]


def names_in(news: News) -> set[str]:
    """Surnames and towns: capitalised words of the summary that stand in the document as well."""
    inside = news.summary.replace(",", "").replace(".", "").split()
    return {word for word in inside[1:] if word[0].isupper() and word in news.document}


def test_the_same_seed_gives_the_same_news() -> None:
    assert draws("train", 20) == draws("train", 20)


def test_everything_the_summary_says_can_be_copied_from_the_document() -> None:
    for news in draws("heldout", 100):
        figures = [word for word in news.summary.replace(",", "").split() if word.isdigit()]
        assert len(figures) == 1
        assert figures[0] in news.document
        assert len(names_in(news)) >= 2


def test_each_document_holds_a_wrong_figure_beside_the_right_one() -> None:
    for news in draws("train", 50):
        words = news.document.replace(".", "").replace(",", "").split()
        assert len({word for word in words if word.isdigit()}) == 2


def test_held_out_news_uses_combinations_of_templates_that_training_never_draws() -> None:
    trained = {news.combination for news in draws("train", 400)}
    held_out = draws("heldout", 100)
    assert all(part_of(*news.combination) == "heldout" for news in held_out)
    assert not trained & {news.combination for news in held_out}


def test_held_out_news_uses_places_that_training_never_draws() -> None:
    def places(part: str) -> set[str]:
        return {
            name for news in draws(part, 200) for name in re.findall(r"(?:from|in) ([A-Z]\w+)", news.summary)
        }

    held_out = places("heldout")
    assert len(held_out) > 200
    assert all(part_of(name.lower()) == "heldout" for name in held_out)
    assert all(part_of(name.lower()) == "train" for name in places("train"))


def test_unseen_templates_share_no_sentence_about_the_fate_with_training() -> None:
    shorts = {fates[-1] for event in EVENTS for fates in event.fates}
    assert shorts == set(UNSEEN_FATES)
    seen = {sentence for event in EVENTS for fates in event.fates for sentence in fates[:-1]}
    assert not seen & set(UNSEEN_FATES.values())


@pytest.mark.parametrize("unseen", [False, True])
def test_documents_are_short_enough_to_be_exemplars(unseen: bool) -> None:
    lengths = [len(news.document.split()) for news in draws("heldout", 200, unseen_templates=unseen)]
    assert min(lengths) >= 50
    assert max(lengths) <= 150


def test_the_exemplar_is_the_prompt_of_the_benchmark() -> None:
    assert exemplar("D", "S") == "Article: D\n\nSummarize the above article in one sentence.\nSummary: S\n\n"
    assert completion("S") == " S\n"
