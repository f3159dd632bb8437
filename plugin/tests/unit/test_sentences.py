"""Two rules for the end of a sentence: the lab's plain one, and a careful one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llm_latency.steps.sentence.sentences import RULES, Rule, first_end


def cut(text: str, rule: Rule) -> str | None:
    found = first_end(text, rule)
    return None if found is None else text[: found[0]]


@pytest.mark.parametrize(
    ("text", "plain", "careful"),
    [
        ("Bring your card. And pills.", "Bring your card.", "Bring your card."),
        ("Version 3.5 is out! Yes.", "Version 3.5 is out!", "Version 3.5 is out!"),
        ("See Dr. Miller at 8. Bye now.", "See Dr.", "See Dr. Miller at 8."),
        ("Fruit, e.g. apples. And tea.", "Fruit, e.g.", "Fruit, e.g. apples."),
        ("Take No. 5 home. Now.", "Take No.", "Take No. 5 home."),
        ("No. We are closed. Sorry.", "No.", "No."),
        ("We open at 8 a.m. on Monday. Come.", "We open at 8 a.m.", "We open at 8 a.m. on Monday."),
        ("We open at 8 a.m. Come early. Please.", "We open at 8 a.m.", "We open at 8 a.m."),
        ("Ask J. R. Smith. He knows.", "Ask J.", "Ask J. R. Smith."),
        ('He said "Stop!" and left. Then.', "He said \"Stop!\" and left.", 'He said "Stop!"'),
        ("(It is closed.) Come back. Yes.", "(It is closed.) Come back.", "(It is closed.)"),
        ("Really?! Yes. No.", "Really?!", "Really?!"),
        ("\u8bf7\u5e26\u533b\u4fdd\u5361\u3002\u8c22\u8c22\u3002", None, "\u8bf7\u5e26\u533b\u4fdd\u5361\u3002"),
        ("\u4ed6\u8bf4\uff1a\u300c\u597d\uff01\u300d\u7136\u540e\u8d70\u4e86\u3002", None, "\u4ed6\u8bf4\uff1a\u300c\u597d\uff01\u300d"),
        ("\u8bf7\u5e26\u533b\u4fdd\u5361\u3002", None, None),
        ("No end at all", None, None),
        ("It ends here.", None, None),
        ("", None, None),
    ],
)  # fmt: skip
def test_the_two_rules(text: str, plain: str | None, careful: str | None) -> None:
    assert (cut(text, "plain"), cut(text, "careful")) == (plain, careful)


@given(st.text("aD r.!?\u3002\u300d 5N\"'o"), st.sampled_from(RULES))
def test_what_is_known_needs_nothing_that_comes_later(text: str, rule: Rule) -> None:
    """The text up to the character by which the end is known gives the same end."""
    found = first_end(text, rule)
    if found is None:
        return
    length, known = found
    assert 0 < length <= known < len(text)
    assert first_end(text[: known + 1], rule) == found
