"""What a model thinks before it answers is no answer: not graded, and not said again in a later turn."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spsbench.base.records import Prompt
from spsbench.tasks.metrics.builtin import final_number
from spsbench.tasks.task import answers
from spsbench.tasks.thoughts import Spoken, opens_thought, spoken

_ANALYSIS, _FINAL = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
_CALL = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}'
_SAID = Spoken("Say 5.", "It is 9.")


@pytest.mark.parametrize(
    ("text", "opened", "expected"),
    [
        ("<think>\nSay 5.\n</think>\n\nIt is 9.", False, Spoken("Say 5.", "It is 9.")),
        ("Say 5.\n</think>\n\nIt is 9.", False, Spoken("Say 5.", "It is 9.")),
        ("Say 5.\n</think>\n\nIt is 9.", True, Spoken("Say 5.", "It is 9.")),
        ("<think>\n\n</think>\n\nIt is 9.", False, Spoken("", "It is 9.")),
        ("<think>\nSay 5", False, Spoken("Say 5", "")),
        ("Say 5", True, Spoken("Say 5", "")),
        ("Say 5", False, Spoken(None, "Say 5")),
        ("", False, Spoken(None, "")),
        ("\n<think>a</think>b</think>c", False, Spoken("a", "b</think>c")),
        ("[THINK]a[/THINK]b", False, Spoken("a", "b")),
        ("<|channel>thought\na<channel|>b", False, Spoken("a", "b")),
        ("<think>a</think>\n<think>b</think>c", False, Spoken("a\nb", "c")),
        ("a</think><think></think>b", True, Spoken("a", "b")),
        ("<think>a</think><think>b", False, Spoken("a\nb", "")),
        (f"{_ANALYSIS}Say 5.<|end|><|start|>assistant{_FINAL}It is 9.<|return|>", False, _SAID),
        (f"{_ANALYSIS}Say 5.<|start|>assistant{_FINAL}It is 9.", False, _SAID),
        (f"Say 5.<|end|><|start|>assistant{_FINAL}It is 9.", True, _SAID),
        (f"{_ANALYSIS}Say 5.{_FINAL}It is 9.", False, _SAID),
        (f"{_FINAL}It is 9.", False, Spoken(None, "It is 9.")),
        (f"{_ANALYSIS}Say 5", False, Spoken("Say 5", "")),
        (f"{_CALL}<|call|>", False, Spoken('{"a": 1}', "")),
        (f"{_ANALYSIS}Say 5.<|end|><|start|>assistant to=f{_CALL}", False, Spoken('Say 5.\n{"a": 1}', "")),
        (f"It writes {_FINAL}", False, Spoken(None, f"It writes {_FINAL}")),
        ('mark = "<think>a</think>"\n', False, Spoken(None, 'mark = "<think>a</think>"\n')),
    ],
)
def test_a_thought_is_parted_from_its_answer(text: str, opened: bool, expected: Spoken) -> None:
    assert spoken(text, opened=opened) == expected
    assert spoken(expected.answer) == Spoken(None, expected.answer) or "</think>" in expected.answer


@pytest.mark.parametrize(
    ("prompt", "opens"),
    [
        ("assistant: <think>\n", True),
        ("assistant: <think>", True),
        ("[THINK]", True),
        ("<|start|>assistant<|channel|>analysis<|message|>", True),
        ("<|start|>assistant<|channel|>final<|message|>", False),
        ("assistant: <think></think>", False),
        ("<think>\n\n</think>\n\n", False),
        ("assistant:", False),
        ("", False),
    ],
)
def test_a_prompt_may_end_within_a_thought(prompt: str, opens: bool) -> None:
    assert opens_thought(prompt) is opens


def test_answers_alone_are_graded() -> None:
    prompt = Prompt("a", "How many?", (1,), "#### 9", chat=True)
    texts = ["<think>#### 5</think>#### 9", "#### 5</think>9", "<think>#### 9", "#### 9"]
    assert answers([prompt] * 4, texts) == ["#### 9", "9", "", "#### 9"]
    assert answers([replace(prompt, thinks=True)] * 2, texts[2:]) == ["", ""]
    assert final_number([""] * 4, texts, ["#### 9"] * 4) == [1, 1, 0, 1]


@pytest.mark.parametrize(
    ("text", "number", "right"),
    [
        (r"\boxed{\$9{,}500}", "9500", True),
        (r"\boxed{8,000}", "8000", True),
        (r"It is $10\,000$ crates.", "10000", True),
        (r"\boxed{12} and then \boxed{7}", "7", True),
        (r"\boxed{12} and then \boxed{7", "12", False),
        (r"So \boxed{42", "42", False),
        (r"#### 3" + "\nor " + r"\boxed{4}", "4", True),
        (r"\boxed{4}" + "\n#### 3", "3", True),
        (r"\boxed{\text{about } 6}", "6", True),
        ("#### Step 1\n6 * 7 = 42.", "42", True),
        ("#### -$5", "-5", True),
        ("The balance is −5.", "-5", True),
        ("1 − 5 = −4", "-4", True),
        ("pages 10-12", "12", True),
        ("12 m3", "12", True),
        ("f(x2) = 8", "8", True),
        ("1,2,3", "3", True),
        ("1,234,567.5", "1234567.5", True),
        ("€1,234.50", "1234.5", True),
        (".5", "0.5", True),
        ("-.5", "-0.5", True),
        ("25%", "25", True),
        ("3.", "3", True),
        ("no number", "3", False),
    ],
)
def test_numbers_are_read_as_they_are_written(text: str, number: str, right: bool) -> None:
    assert final_number([""], [text], [f"#### {number}"]) == [float(right)]
