"""The zoo: one small thing wrong each, and what the suite must say to it."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from proxy import Events, Proxy
from scripted import Request

from pytest_llm_latency.steps.cancel.asks import CONTROL_TOKENS

STREAMED = frozenset(("sse", "ttft", "prefill", "cache", "sentence", "cancel"))


@dataclass(frozen=True)
class Fault:
    """`told`: each step that must fail, and all that it must say: "broken: CODE" or another
    outcome, " and " another, " or " what is right as well; None: it could not be measured, and its words hold `words`. All other steps must pass.
    `slow`: on a model that generates some 90 tokens a second."""

    name: str
    proxy: Proxy = field(default_factory=Proxy)
    told: dict[str, str | None] = field(default_factory=dict)
    words: str = ""
    server: tuple[str, ...] = ()
    slow: bool = False
    log: str = "the server's"
    args: tuple[str, ...] = ()


def payload(event: bytes) -> dict[str, Any] | None:
    """The JSON of an event; None for [DONE] and comments."""
    if not event.startswith(b"data: {"):
        return None
    value: dict[str, Any] = json.loads(event[6:])
    return value


def event_of(value: dict[str, Any]) -> bytes:
    """And back."""
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def text_of(event: bytes) -> str:
    """The piece of text in an event."""
    choices = (payload(event) or {}).get("choices") or [{}]
    return choices[0].get("delta", {}).get("content") or ""


def changed(change: Callable[[dict[str, Any]], None]) -> Callable[[Events, Request], Events]:
    """An answer with every payload changed in place."""

    def answer(events: Events, _: Request) -> Events:
        for event in events:
            value = payload(event)
            if value is None:
                yield event
            else:
                change(value)
                yield event_of(value)

    return answer


def system_of(request: Request) -> str:
    """The system prompt of a chat request."""
    messages = (request.body or {}).get("messages") or [{}]
    return messages[0]["content"] if messages[0].get("role") == "system" else ""


def with_system(change: Callable[[str], str]) -> Callable[[Request], None]:
    """An edit of the system prompt of streamed requests."""

    def edit(request: Request) -> None:
        if (request.body or {}).get("stream") and system_of(request):
            request.body["messages"][0]["content"] = change(system_of(request))

    return edit


def with_body(**fields: Any) -> Callable[[Request], None]:
    """An edit that sets fields of streamed requests."""

    def edit(request: Request) -> None:
        if (request.body or {}).get("stream"):
            request.body.update(fields)

    return edit


# --- streams ---


def all_at_once(events: Events, _: Request) -> Events:
    yield b"".join(events)


def cut_up(events: Events, _: Request) -> Events:
    yield from list(events)


def merged(events: Events, _: Request) -> Events:
    """Some eight tokens in a piece, and all pieces at the end."""
    whole = list(events)
    texts = [text_of(event) for event in whole]
    model = payload(whole[0]) or {}
    for start in range(0, len(whole), 8):
        text = "".join(texts[start : start + 8])
        if text:
            yield event_of({**model, "choices": [{"index": 0, "delta": {"content": text}}]})
    yield from (event for event, text in zip(whole, texts) if not text)


def clumps(events: Events, _: Request) -> Events:
    held: list[bytes] = []
    last = time.monotonic()
    for event in events:
        held.append(event)
        if time.monotonic() - last >= 0.1:
            yield b"".join(held)
            held, last = [], time.monotonic()
    yield b"".join(held)


def until_4_kb(events: Events, _: Request) -> Events:
    """As a buffer that is first filled; what follows flows."""
    held: list[bytes] | None = []
    for event in events:
        if held is None:
            yield event
            continue
        held.append(event)
        if sum(map(len, held)) >= 4096:
            yield b"".join(held)
            held = None
    yield b"".join(held or [])


def held_from(first: int, count: int | None) -> Callable[[Events, Request], Events]:
    """So many texts held from the `first` on; None: all to the end."""

    def answer(events: Events, _: Request) -> Events:
        held: list[bytes] = []
        texts = 0
        for event in events:
            texts += bool(text_of(event))
            if texts <= first or (count is not None and texts > first + count):
                yield b"".join([*held, event])
                held = []
            else:
                held.append(event)
        yield b"".join(held)

    return answer


def cut_short(events: Events, request: Request) -> Events:
    for number, event in enumerate(events):
        if "three short" in system_of(request) and number == 20:
            return
        yield event


def error_inside(events: Events, request: Request) -> Events:
    for number, event in enumerate(events):
        if "three short" in system_of(request) and number == 20:
            yield event_of({"error": {"message": "out of luck", "code": 500}})
            yield b"data: [DONE]\n\n"
            return
        yield event


def no_text(events: Events, request: Request) -> Events:
    for event in events:
        if "three short" not in system_of(request) or not text_of(event):
            yield event


def not_json(events: Events, request: Request) -> Events:
    for number, event in enumerate(events):
        yield (
            b"data: <html>busy</html>\n\n"
            if number == 20 and "three" in system_of(request)
            else event
        )


def odd_but_right(events: Events, _: Request) -> Events:
    """CRLF, comments, no blank behind the colon, a mark at the start, split anywhere."""
    yield b"\xef\xbb\xbf: hello\r\n\r\n"
    for event in events:
        odd = event.replace(b"data: ", b"data:").replace(b"\n", b"\r\n") + b": ping\r\n\r\n"
        yield odd[:7]
        yield odd[7:]


def without_done(events: Events, _: Request) -> Events:
    for event in events:
        if event != b"data: [DONE]\n\n":
            yield event


# --- requests ---

_numbers = itertools.count(100_000)


def numbered(text: str) -> str:
    return f"Session {next(_numbers)}. {text}"


def growing(text: str) -> str:
    """By more than the tokens of a number differ."""
    number = next(_numbers)
    return f"Session {number}{' and again' * (number % 50)}. {text}"


def other_slot(request: Request) -> None:
    if (request.body or {}).get("stream"):
        request.body["id_slot"] = next(_numbers) % 2


def large_blocks(request: Request) -> None:
    """A prompt of less than 1,500 characters never hits."""
    if (request.body or {}).get("stream") and len(system_of(request)) < 1500:
        request.body["cache_prompt"] = False


class ResponseCache:
    """Answers a request that it has seen by what it was answered then."""

    def __init__(self) -> None:
        self._known: dict[str, list[bytes]] = {}

    def answer(self, events: Events, request: Request) -> Events:
        key = json.dumps(request.body, sort_keys=True)
        known = self._known.get(key, [])
        if known and known[-1].startswith(b"data: [DONE]"):
            yield from known
            return
        seen = self._known[key] = []
        for event in events:
            seen.append(event)
            yield event


# --- counts ---


def no_counts(value: dict[str, Any]) -> None:
    value.pop("timings", None)
    value.pop("usage", None)


class ClaimsAHit:
    """Claims a cache hit for every second of the same prompts, and lets none happen."""

    def __init__(self, conflicting: bool) -> None:
        self._seen: set[str] = set()
        self._conflicting = conflicting

    def answer(self, events: Events, request: Request) -> Events:
        key = system_of(request)
        again = key in self._seen and request.body["max_tokens"] == 32
        self._seen.add(key)
        for event in events:
            value = payload(event)
            timings = (value or {}).get("timings")
            if not again or value is None or not timings:
                yield event
                continue
            if self._conflicting:
                timings["prompt_n"] = 1
            else:
                timings["cache_n"] += timings["prompt_n"] - 1
                timings["prompt_n"] = 1
                (value.get("usage") or {}).pop("prompt_tokens_details", None)
            timings["prompt_ms"] = 1.0
            yield event_of(value)


def slower_clock(value: dict[str, Any]) -> None:
    if value.get("timings"):
        value["timings"]["prompt_ms"] *= 3.0


def waits(seconds: Callable[[Request], float]) -> Callable[[Events, Request], Events]:
    """Holds the first text back for a while, in the requests of the prefill and cache steps."""

    def answer(events: Events, request: Request) -> Events:
        held = request.body["max_tokens"] != 32
        for event in events:
            if text_of(event) and not held:
                time.sleep(seconds(request))
                held = True
            yield event

    return answer


class SlowHits:
    """A cache that takes longer to look up than the prompt takes to process."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def seconds(self, request: Request) -> float:
        known = system_of(request) in self._seen
        self._seen.add(system_of(request))
        return 0.8 if known else 0.0


# --- plain answers ---


def slots(**changes: Any) -> Callable[[Request, Any], Any]:
    def change(request: Request, value: Any) -> Any:
        if request.target == "/slots" and isinstance(value, list):
            return [slot | changes for slot in value]
        return value

    return change


class StuckSlot:
    """A slot that stays busy once a stream was cut off."""

    def __init__(self) -> None:
        self._stuck = False

    def answer(self, events: Events, _: Request) -> Events:
        done = False
        try:
            for event in events:
                done = done or event.startswith(b"data: [DONE]")
                yield event
        finally:
            self._stuck = self._stuck or not done

    def json(self, request: Request, value: Any) -> Any:
        return slots(is_processing=True)(request, value) if self._stuck else value

    @classmethod
    def proxy(cls) -> Proxy:
        stuck = cls()
        return Proxy(answer=stuck.answer, json=stuck.json)


def refusing(target: str, status: int, words: str) -> Callable[[Request], tuple[int, Any] | None]:
    def reply(request: Request) -> tuple[int, Any] | None:
        if request.target != target:
            return None
        return status, {"error": {"message": words, "code": status}}

    return reply


def next_refused(request: Request) -> tuple[int, Any] | None:
    body = request.body or {}
    if body.get("stream") and body["max_tokens"] == CONTROL_TOKENS:
        return 503, {"error": {"message": "still busy with the call before", "code": 503}}
    return None


CACHE_OFF = with_body(cache_prompt=False)
BURST = dict.fromkeys(("sse", "ttft", "sentence"), "broken: burst")
HELD = dict.fromkeys(("sse", "ttft", "sentence"), "broken: held-back")
NO_SENTENCE = dict.fromkeys(("sentence", "report"))
# By times alone: where the machine is too busy to show that there is no difference, noise.
NO_DIFFERENCE = {"cache": "broken: no-difference-in-time or inconclusive: noise"}
MISS = {"cache": "broken: cache-never-hits"}


def when(target: str, value: Any) -> Callable[[Request, Any], Any]:
    """An answer to `target` by `value`."""
    return lambda request, found: value if request.target == target else found


FAULTS = [
    Fault("buffers everything", Proxy(answer=all_at_once), BURST, slow=True),
    Fault("cuts a finished answer up", Proxy(answer=cut_up), BURST, slow=True),
    Fault("buffers and merges", Proxy(answer=merged), BURST, slow=True),
    Fault("sends in clumps", Proxy(answer=clumps), {"sse": "broken: coalesced"}, slow=True),
    Fault("holds the first 4 KB", Proxy(answer=until_4_kb), HELD, slow=True),
    Fault("holds in the middle", Proxy(answer=held_from(20, 24)), {"sse": "broken: held-back"}, slow=True),
    Fault("holds at the end", Proxy(answer=held_from(36, None)), {"sse": "broken: held-back"}, slow=True),
    Fault("cuts short", Proxy(answer=cut_short), NO_SENTENCE, "cut short"),
    Fault("an error inside the stream", Proxy(answer=error_inside), NO_SENTENCE, "out of luck"),
    Fault("no text", Proxy(answer=no_text), NO_SENTENCE, "no text"),
    Fault("no JSON", Proxy(answer=not_json), NO_SENTENCE, "not a JSON object"),
    Fault("does not stream", Proxy(edit=with_body(stream=False, stream_options=None)), {**dict.fromkeys(STREAMED | {"report"}), "sse": "broken: stream-error"}, "no event stream"),
    Fault("drops cache_prompt", Proxy(edit=CACHE_OFF), MISS),
    Fault("numbers every prompt", Proxy(edit=with_system(numbered)), MISS),
    Fault("grows every prompt", Proxy(edit=with_system(growing)), {"cache": "broken: prompt-changed-on-the-way"}),
    Fault("another slot every time", Proxy(edit=other_slot), {"cache": "broken: cache-elsewhere"}, server=("-np", "2", "-c", "16384")),
    Fault("drops the system prompt", Proxy(edit=with_system(lambda _: "Hello.")), {"prefill": "broken: prompt-not-growing", "cache": "inconclusive: cold-leg-was-warm"}),
    Fault("cuts prompts off", Proxy(edit=with_system(lambda text: text[:150])), {"prefill": "broken: prompt-not-growing"}),
    Fault("strips the changed line", Proxy(edit=with_system(lambda text: text.removeprefix("Current time: 14:05. "))), {"cache": "inconclusive: changed-prefix-hit"}),
    Fault("a cache of responses", Proxy(answer=ResponseCache().answer), {"ttft": "broken: burst", "cache": "broken: clock-disagreement"}),
    Fault("no counts and no cache", Proxy(edit=CACHE_OFF, answer=changed(no_counts)), NO_DIFFERENCE),
    Fault("counts that contradict, and no cache", Proxy(edit=CACHE_OFF, answer=ClaimsAHit(conflicting=True).answer), NO_DIFFERENCE),
    Fault("counts that claim a hit, and no cache", Proxy(edit=CACHE_OFF, answer=ClaimsAHit(conflicting=False).answer), {"cache": "inconclusive: cache-time"}),
    Fault("a clock that runs too fast", Proxy(answer=changed(slower_clock)), dict.fromkeys(("prefill", "cache"), "broken: clock-disagreement")),
    Fault("short prompts wait", Proxy(answer=waits(lambda request: 0.8 if len(system_of(request)) < 120 else 0.0)), {"prefill": "inconclusive: prefill-time"}),
    Fault("a cache slower than none", Proxy(answer=waits(SlowHits().seconds)), {"cache": "inconclusive: cache-time"}),
    Fault("drops the disconnect", Proxy(passes_close=lambda sent: False), {"cancel": "broken: cancel-ignored and broken: cancel-late-in-prefill or broken: cancel-ignored"}, slow=True),
    Fault("holds the disconnect", Proxy(holds_close_s=1.5), {"cancel": "broken: cancel-late"}, slow=True),
    Fault("drops the disconnect in prefill", Proxy(passes_close=lambda sent: sent), {"cancel": "broken: cancel-late-in-prefill"}, slow=True),
    Fault("a slot that is never idle", StuckSlot.proxy(), {"cancel": "broken: cancel-logged-but-running"}, args=("-p", "short_waits")),
    Fault("a slot that is never idle, without a log", StuckSlot.proxy(), {"cancel": "broken: cancel-ignored"}, log="none", args=("-p", "short_waits")),
    Fault("a slot that others keep busy", Proxy(json=slots(is_processing=True)), {"cancel": "not measurable: no-slots"}),
    Fault("another server's slots", Proxy(json=slots(is_processing=False)), {"cancel": "inconclusive: slots-blind"}, slow=True),
    Fault("a log that lies", Proxy(passes_close=lambda sent: False), {"cancel": "broken: cancel-logged-but-running and broken: cancel-late-in-prefill or broken: cancel-logged-but-running"}, log="lies", slow=True),
    Fault("another server's log", Proxy(), {"cancel": "inconclusive: cancel-not-logged"}, log="another"),
    Fault("the next request suffers", Proxy(reply=next_refused), {"cancel": "broken: next-request-suffers"}),
    Fault("not healthy by its own words", Proxy(json=when("/health", {"status": "degraded"})), {"server": "broken: server-facts"}),
    Fault("no context in /props", Proxy(json=when("/props", {"model_path": "m", "total_slots": 1})), {"server": "broken: server-facts"}),
    Fault("no /slots, and several requests at once", Proxy(reply=refusing("/slots", 501, "This server does not support slots endpoint.")), {"cancel": "not measurable: no-slots"}, server=("-np", "4", "-c", "32768", "--cache-ram", "512")),
    Fault("holds the disconnect, no /slots and no counts", Proxy(reply=refusing("/slots", 501, "No."), answer=changed(no_counts), holds_close_s=1.6), {"cancel": "broken: cancel-late or broken: cancel-ignored"}, log="none", slow=True),
    Fault("drops the disconnect, and no /slots", Proxy(reply=refusing("/slots", 501, "No."), passes_close=lambda sent: False), {"cancel": "broken: cancel-ignored"}, log="none", slow=True),
]  # fmt: skip

HEALTHY = [
    Fault("nothing wrong"),
    Fault("nothing wrong, slow", slow=True),
    Fault("odd but right", Proxy(answer=odd_but_right)),
    Fault("no [DONE]", Proxy(answer=without_done)),
    Fault("no counts", Proxy(answer=changed(no_counts))),
    Fault("four slots and a cache in RAM", server=("-np", "4", "-c", "32768", "--cache-ram", "512")),
    Fault("no /slots, one request at a time", Proxy(reply=refusing("/slots", 501, "No.")), log="none"),
    Fault("a cache of large blocks", Proxy(edit=large_blocks)),
    Fault("no templates", Proxy(reply=refusing("/apply-template", 404, "File Not Found"))),
]  # fmt: skip
