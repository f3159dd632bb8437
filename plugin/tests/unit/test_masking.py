"""Secrets are found in every form, what is starred keeps its length, and all else stays."""

from __future__ import annotations

import base64
import html
import json
import re
import time
from collections.abc import Callable, Sequence
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import text_event

from pytest_llm_latency.evidence.recording import End, Recording, Request, dump, load
from pytest_llm_latency.masking import Mask
from pytest_llm_latency.sse import Read, all_events, chunk_of, content

KEY = "sk-Zq9/abc+DEF==tail_7788XY"
FORMS: dict[str, Callable[[str], str]] = {
    "as it is": lambda key: key,
    "JSON": json.dumps,
    "JSON in JSON": lambda key: json.dumps(json.dumps(key).replace("/", "\\/")),
    "PHP's JSON": lambda key: key.replace("/", "\\/"),
    ".NET's JSON": lambda key: key.replace("+", "\\u002B").replace("=", "\\u003d"),
    "all of it in \\u": lambda key: "".join(f"\\u{ord(c):04X}" for c in key),
    "\\u in JSON in JSON": lambda key: "".join(f"\\\\\\\\u{ord(c):04x}" for c in key),
    "\\x": lambda key: "".join(f"\\x{ord(c):02x}" for c in key),
    "URL": lambda key: quote(key, safe=""),
    "form": quote_plus,
    "URL in URL": lambda key: quote(quote(key, safe=""), safe=""),
    "all of it in %": lambda key: "".join(f"%{ord(c):02x}" for c in key),
    "JSON in URL": lambda key: quote(key.replace("/", "\\/"), safe=""),
    "HTML": lambda key: html.escape(key).replace("=", "&equals;").replace("+", "&plus;"),
    "HTML's numbers": lambda key: "".join(f"&#{ord(c)};" for c in key),
    "HTML's numbers, base 16": lambda key: "".join(f"&#x{ord(c):X};" for c in key),
    "HTML in HTML": lambda key: "".join(f"&amp;#0{ord(c)};" for c in key),
    "HTML in JSON": lambda key: "".join(f"\\u0026#x{ord(c):02x};" for c in key),
}


def coded(before: str, key: str, urlsafe: bool) -> str:
    data = f"{before}{key}:more".encode()
    return (base64.urlsafe_b64encode if urlsafe else base64.b64encode)(data).decode()


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_starred(form: str) -> None:
    there = FORMS[form](KEY)
    text = f"before {there} after"
    masked = Mask([KEY]).data(text.encode()).decode()
    assert len(masked) == len(text)
    bare = re.sub(r'^(\\*")+|(\\*")+$', "", there)
    start = text.index(bare)
    assert masked == text[:start] + "*" * len(bare) + text[start + len(bare) :]


@pytest.mark.parametrize("urlsafe", [False, True])
@pytest.mark.parametrize("before", ["", "u", "us", "use", "user:"])
def test_base64_wherever_it_begins(before: str, urlsafe: bool) -> None:
    """Of the whole only what a neighbour shares with the key stays."""
    key = KEY + "\N{GREEK SMALL LETTER OMEGA}>>>???"  # whose base64 has both + and /
    there = coded(before, key, urlsafe)
    for written in (there, there.replace("/", "\\/"), quote(there, safe="")):
        masked = Mask([key]).text(f"Authorization: Basic {written};")
        assert masked.startswith("Authorization: Basic ")
        at = 8 * len(before) // 6 + 2
        assert "*" * (len(there) - at - 10) in masked
        assert there[at + 2 : at + 12] not in masked


@pytest.mark.parametrize("cuts", [(9,), (1, 2), (20, 30), tuple(range(1, 60))])
def test_a_secret_split_over_reads(cuts: Sequence[int]) -> None:
    body = f"data: {KEY} and {KEY}\n\n".encode()
    ends = [*cuts, len(body)]
    parts = [body[start:end] for start, end in zip([0, *cuts], ends)]
    masked, places = Mask([KEY]).parts(parts)
    stars = "*" * len(KEY)
    assert b"".join(masked).decode() == f"data: {stars} and {stars}\n\n"
    assert list(map(len, masked)) == list(map(len, parts))
    assert places == 2


def texts(body: bytes) -> list[str]:
    values = [chunk_of(event) for _, event in all_events([Read(0.0, body)])]
    return [content(value) for value in values if value is not None]


@pytest.mark.parametrize("escape", [str, lambda s: s.replace("/", "\\/").replace("+", "\\u002B")])
def test_a_secret_split_over_pieces(escape: Callable[[str], str]) -> None:
    words = ["the ", "key", " ", "sk-Z", "q9/a", "b", "c+DEF==tail_7788", "XY is", " wrong", "."]
    body = escape("".join(map(text_event, words))).encode()
    masked = Mask([KEY]).data(body)
    assert len(masked) == len(body)
    said = texts(masked)
    assert set(said[3] + said[4] + said[5] + said[6]) == {"*"}
    assert [*said[:3], *said[8:]] == [*words[:3], *words[8:]]
    assert said[7] == "** is"


def test_a_secret_in_deltas_that_have_all_text_so_far() -> None:
    """Each but the last has only its beginning, and they must still begin with each other."""
    whole = f"the key {KEY} is wrong."
    body = "".join(text_event(whole[:end]) for end in range(5, len(whole) + 1, 5)).encode()
    said = texts(Mask([KEY]).data(body))
    masked = whole.replace(KEY, "*" * len(KEY))
    assert said == [masked[: len(text)] for text in said]


def test_a_secret_cut_off_at_the_end() -> None:
    masked = Mask([KEY]).data(f"the key {KEY[:12]}".encode())
    assert masked == b"the key ************"
    assert Mask([KEY]).data(b"the key sk-Zq") == b"the key sk-Zq"  # too little to be known by


@pytest.mark.parametrize(
    ("secret", "text"),
    [
        ("nabcdefgh", r'{"a": "\nabcdefgh"}'),
        ("nabcdefgh", r'{"a": "\\nabcdefgh"}'),
        ("2Babcdefgh", r'{"a": "\u002Babcdefgh"}'),
        ("abcdefgh\\", r'{"a": "abcdefgh\\"}'),
        ("abcdefgh\\", r'{"a": "abcdefgh\"b"}'),
        ("abcdefgh\\", r'{"a": "abcdefgh\u0041b"}'),
        ("\\abcdefgh", r'{"a": "\\abcdefgh"}'),
        ("17123456", '{"created": 1712345678, "a": 17123456, "b": "17123456"}'),
    ],
)
def test_json_stays_json(secret: str, text: str) -> None:
    json.loads(text)
    masked = Mask([secret]).text(text)
    assert json.loads(masked).keys() == json.loads(text).keys()
    assert len(masked) == len(text)
    assert secret not in masked


@pytest.mark.parametrize("text", ["sk-Zq9", KEY[1:], KEY[:-1] + " ", KEY.replace("_", "-"), ""])
def test_what_is_not_the_secret_stays(text: str) -> None:
    assert Mask([KEY, "short", ""]).text(f"short {text} {{}}") == f"short {text} {{}}"


ESCAPES: Sequence[Callable[[str], str]] = (
    lambda c: c,
    lambda c: json.dumps(c)[1:-1],
    lambda c: f"\\u{ord(c):04x}",
    lambda c: f"\\\\u{ord(c):04X}",
    lambda c: quote(c, safe=""),
    lambda c: f"%25{ord(c):02X}" if c.isascii() else quote(c),
    lambda c: f"&#{ord(c)};" if c.isascii() else c,
    lambda c: f"&#x{ord(c):x};" if c.isascii() else c,
    lambda c: html.escape(c),
)
PRINTED = st.characters(exclude_categories=("Cc", "Cs"))
KEYS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=8, max_size=40)


@pytest.mark.parametrize("key", ["00000%20", "a%2520b%41cd", "00000&#32;", "00000&amp;x"])
@pytest.mark.parametrize(
    "escape",
    [
        str,
        lambda key: quote(key, safe=""),
        html.escape,
        lambda key: quote(quote(key, safe=""), safe=""),
        lambda key: html.escape(html.escape(key)),
        lambda key: json.dumps(key)[1:-1],
    ],
)
def test_a_secret_that_looks_like_an_escape(key: str, escape: Callable[[str], str]) -> None:
    """It must be found before what it looks like is undone."""
    assert Mask([key]).text(f" {escape(key)} ").strip(" *9\\") == ""


@given(st.data(), KEYS)
@settings(max_examples=100, deadline=None)
def test_any_mixture_of_escapes(data: st.DataObject, key: str) -> None:
    """Of a secret that itself has what begins an escape, the usual ones."""
    how = data.draw(st.lists(st.sampled_from(ESCAPES), min_size=len(key), max_size=len(key)))
    body = "".join(escape(c) for escape, c in zip(how, key)).encode()
    if not set("%&\\") & set(key):
        assert Mask([key]).data(b'"' + body + b'"') == b'"' + _star(body) * len(body) + b'"'
    for text in (key, json.dumps(key)[1:-1], quote(key, safe="")):
        if len(key.replace("\\", "")) >= 8:
            assert Mask([key]).text(f" {text} ").strip(" \\*9") == ""


def _star(body: bytes) -> bytes:
    return b"9" if body.isdigit() else b"*"


@given(st.text(max_size=60), KEYS)
@settings(max_examples=100, deadline=None)
def test_any_other_text_stays(text: str, key: str) -> None:
    if key[:8] not in text:
        masked = Mask([f"{key}#"]).text(json.dumps(text))
        assert masked == json.dumps(text)


@given(st.text(max_size=9), st.text(max_size=9), st.text(PRINTED, min_size=8, max_size=20))
@settings(max_examples=100, deadline=None)
def test_any_json_stays_json(before: str, after: str, key: str) -> None:
    for text in (
        json.dumps(before + key + after),
        json.dumps(before + key + after, ensure_ascii=False),
    ):
        masked = Mask([key]).data(text.encode("utf-8", "surrogatepass"))
        assert isinstance(json.loads(masked.decode("utf-8", "surrogatepass")), str)
        assert key not in json.loads(masked.decode("utf-8", "surrogatepass"))


@pytest.mark.parametrize(
    "body",
    [
        text_event("some words ").encode() * 60_000,
        b"\\" * 10**7,
        b"&amp;" * 10**6,
        b'"content":"' * 10**6,
    ],
    ids=["an answer", "backslashes", "ampersands", "strings without end"],
)
def test_ten_megabytes_are_little_work(body: bytes) -> None:
    """0.2 to 0.5 s on the machine where this was written, whose processor others share."""
    mask = Mask([KEY, "battery-staple"])
    begun = time.process_time()
    mask.data(body[: 10**7])
    assert time.process_time() - begun < 3


def test_a_recording_says_how_many_places() -> None:
    request = Request("POST", "/v1/chat/completions", {}, {})
    end = End("eof", 1.0)
    text = dump(Recording("own/1", request, 200, (), None, None, (), end, masked=3)).decode()
    assert load(text, "x").masked == 3
    before = text.replace(', "masked": 3', "")
    assert before != text
    assert load(before, "x").masked == 0


def test_no_repr_shows_a_secret() -> None:
    mask = Mask([KEY]).also(["battery-staple"])
    assert mask.text("a battery-staple") == "a **************"
    shown = repr(mask) + repr(vars(mask))
    assert KEY not in shown
    assert "battery" not in shown
