"""The lab done by hand, as a learner would: http.client, ten lines a step, no package of ours.

`python by_hand.py URL KB_DIRECTORY LOG_FILE` writes the eleven artifacts and the log
into the current directory.
"""

import http.client
import json
import pathlib
import re
import shutil
import sys
import time
import urllib.request

URL, KB, LOG = sys.argv[1:]
HOST = URL.removeprefix("http://")
SYSTEM = "You are a clinic phone assistant. Answer in one short sentence."
SSE_PY = """
import http.client, json, time

HOST = "localhost:8080"

def stream(messages, max_tokens=64, cache_prompt=True, raw_out=None):
    connection = http.client.HTTPConnection(HOST)
    body = {"messages": messages, "max_tokens": max_tokens, "cache_prompt": cache_prompt, "stream": True}
    started = time.perf_counter()
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    pieces, timings = [], {}
    for line in connection.getresponse():
        now = (time.perf_counter() - started) * 1000
        if raw_out:
            raw_out.write(line)
        line = line.decode().rstrip()
        if line == "data: [DONE]":
            break
        if line.startswith("data: "):
            chunk = json.loads(line[6:])
            timings = chunk.get("timings", timings)
            text = chunk["choices"][0]["delta"].get("content") if chunk["choices"] else None
            if text:
                pieces.append({"t_ms": now, "text": text})
    return pieces, (time.perf_counter() - started) * 1000, timings
"""
namespace = {}
exec(SSE_PY.replace("localhost:8080", HOST), namespace)
stream = namespace["stream"]


def chat(system, user):
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]


def save(name, value):
    pathlib.Path(name).write_text(json.dumps(value))


# 1 server
for name in ("health", "props"):
    pathlib.Path(f"{name}.json").write_bytes(urllib.request.urlopen(f"{URL}/{name}").read())

# 2 sse
pathlib.Path("sse.py").write_text(SSE_PY)
with open("sse_raw.txt", "wb") as raw:
    pieces, total, timings = stream(chat(SYSTEM, "What should a new patient bring?"), raw_out=raw)
with open("chunks.jsonl", "w") as chunks:
    for piece in pieces:
        chunks.write(json.dumps(piece) + "\n")

# 3 ttft
runs = []
for _ in range(5):
    pieces, total, timings = stream(
        chat(SYSTEM, "What should a new patient bring?"), cache_prompt=False
    )
    runs.append({"ttft_ms": pieces[0]["t_ms"], "total_ms": total, "tokens": timings["predicted_n"]})
save("ttft.json", {
    "runs": runs,
    "ttft_p50": sorted(run["ttft_ms"] for run in runs)[2],
    "total_p50": sorted(run["total_ms"] for run in runs)[2],
})  # fmt: skip

# 4 prefill
documents = [path.read_text() for path in sorted(pathlib.Path(KB).glob("*.md"))]
rows = []
for n in (0, 4, 12):
    system = "\n\n".join([SYSTEM, *documents[:n]])
    pieces, total, timings = stream(chat(system, "When is the clinic open on Saturday?"), 32, False)
    rows.append(
        {
            "docs": n,
            "prompt_n": timings["prompt_n"],
            "prompt_ms": timings["prompt_ms"],
            "ttft_ms": pieces[0]["t_ms"],
        }
    )
save("prefill.json", rows)

# 5 cache
long = "\n\n".join([SYSTEM, *documents])
stream(chat(SYSTEM, "hi"), 8, False)
legs = {}
for name, system in (
    ("first", long),
    ("second", long),
    ("changed_prefix", "Current time: 14:05. " + long),
):
    pieces, total, timings = stream(chat(system, "When is the clinic open on Saturday?"), 32)
    legs[name] = {"prompt_n": timings["prompt_n"], "ttft_ms": pieces[0]["t_ms"]}
save("cache.json", legs)

# 6 sentence
three = "You are a clinic phone assistant. Answer in exactly three short sentences."
pieces, total, timings = stream(chat(three, "How do I prepare for a fasting blood test?"), 120)
text, moment = "", None
for piece in pieces:
    text += piece["text"]
    if moment is None and re.search(r"[.!?] ", text):
        moment = piece["t_ms"]
found = re.search(r"[.!?] ", text)
save("sentence.json", {
    "ttft_ms": pieces[0]["t_ms"],
    "first_sentence_ms": moment if found else pieces[-1]["t_ms"],
    "total_ms": total,
    "first_sentence": text[: found.start() + 1] if found else text,
    "text": text,
})  # fmt: skip

# 7 cancel
connection = http.client.HTTPConnection(HOST)
question = [{"role": "user", "content": "List the numbers from 1 to 300, separated by commas."}]
body = {"messages": question, "max_tokens": 256, "stream": True}
started = time.perf_counter()
connection.request(
    "POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"}
)
response, received = connection.getresponse(), 0
for line in response:
    received += b'"content":"' in line
    # A fast machine has all 256 within the lab's half a second.
    if received == 32 or time.perf_counter() - started > 0.5:
        break
response.close()
connection.close()
closed = time.perf_counter()
while any(slot["is_processing"] for slot in json.load(urllib.request.urlopen(f"{URL}/slots"))):
    time.sleep(0.01)
save("cancel.json", {
    "max_tokens": 256,
    "received_tokens": received,
    "closed_at_ms": (closed - started) * 1000,
    "slot_idle_after_ms": (time.perf_counter() - closed) * 1000,
})  # fmt: skip
time.sleep(0.2)
shutil.copy(LOG, "server.log")

# 8 report
load = {p.stem: json.loads(p.read_text()) for p in pathlib.Path().glob("*.json")}
save("report.json", {
    "ttft_p50_ms": load["ttft"]["ttft_p50"],
    "total_p50_ms": load["ttft"]["total_p50"],
    "ttft_12docs_ms": load["prefill"][-1]["ttft_ms"],
    "prompt_n_12docs": load["prefill"][-1]["prompt_n"],
    "cache_ttft_ms": load["cache"]["second"]["ttft_ms"],
    "first_sentence_ms": load["sentence"]["first_sentence_ms"],
    "cancel_idle_ms": load["cancel"]["slot_idle_after_ms"],
})  # fmt: skip
