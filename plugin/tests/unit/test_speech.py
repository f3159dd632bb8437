"""A voice at a steady rate, and sentences that come in time or too late."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llm_latency.evidence.timeline import Piece
from pytest_llm_latency.steps.sentence.sentences import RULES, Rule, all_ends
from pytest_llm_latency.steps.sentence.speech import Speech, speech

# At 60 words a minute a word takes a second.
TWO, THREE = "One two. ", "One two three. "


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([(500.0, TWO), (2000.0, THREE)], (2, 0.0, None, 0.0)),
        # The first is spoken from 0.5 to 2.5 s; the second comes at 3 s.
        ([(500.0, TWO), (3000.0, THREE)], (2, 500.0, 2, 500.0)),
        # Silent for 0.5 s before the second, for 1 s before the third: 1.5 s later, never.
        ([(500.0, TWO), (3000.0, TWO), (6000.0, TWO)], (3, 1000.0, 3, 1500.0)),
        # A long first sentence makes up for a late third.
        ([(500.0, THREE * 1), (1000.0, THREE), (6000.0, "End")], (3, 0.0, None, 0.0)),
        ([(500.0, "no end at all")], (1, 0.0, None, 0.0)),
    ],
)
def test_speech(pieces: list[tuple[float, str]], expected: tuple[object, ...]) -> None:
    found = speech([Piece(*piece) for piece in pieces], "plain", 60.0)
    assert (
        found.sentences,
        found.underrun_ms,
        found.underrun_sentence,
        found.start_delay_ms,
    ) == expected


def test_a_character_of_chinese_is_a_syllable() -> None:
    pieces = [Piece(0.0, "\u8bf7\u5e26\u8bc1\u4ef6\u3002\u8c22"), Piece(5000.0, "\u8c22\u3002")]
    found = speech(pieces, "careful", 60.0)
    assert found.underrun_ms == pytest.approx(5000.0 - 4 / 1.65 * 1000, abs=1)


def test_words() -> None:
    assert Speech(150, 3, 0.0, None, 0.0).words() == (
        "at 150 words a minute a voice speaks 3 sentences without a pause"
    )
    assert "falls silent for 320 ms before sentence 2 of 3; beginning 400 ms later" in (
        Speech(150, 3, 320.0, 2, 400.0).words()
    )


@given(st.text(alphabet="ab .!?\u3002\n3", max_size=60), st.sampled_from(RULES))
def test_sentences_cover_the_text_in_order(text: str, rule: Rule) -> None:
    ends = all_ends(text, rule)
    assert ends[0][0] == 0
    assert all(before[1] == after[0] for before, after in itertools.pairwise(ends))
    assert all(start <= end <= known for start, end, known in ends)
    assert not text[ends[-1][1] :].strip()


@given(
    st.lists(st.tuples(st.floats(0, 9000), st.sampled_from([TWO, THREE, "x", "y! "])), min_size=1),
    st.floats(30, 400),
)
def test_a_voice_that_begins_later_by_the_delay_is_never_silent(
    pieces: list[tuple[float, str]], rate: float
) -> None:
    ordered = [Piece(t, text) for t, (_, text) in zip(sorted(t for t, _ in pieces), pieces)]
    found = speech(ordered, "plain", rate)
    later = [Piece(max(p.t_ms, ordered[0].t_ms), p.text) for p in ordered]
    assert found == speech(later, "plain", rate)
    assert (
        (found.underrun_ms > 0)
        == (found.start_delay_ms > 0)
        == (found.underrun_sentence is not None)
    )
    assert found.start_delay_ms >= found.underrun_ms - 0.01
