"""How true is the clock? Every reader on every shape, interleaved; ratios to the limit.

`python bench/accuracy/run.py [ROUNDS] [--json FILE] [--plot FILE]` prints Markdown. Times differ
from machine to machine; what is compared are readers within a round, one after another on the
same emitter. The limit, a bare recv loop, is measured twice a round: what lies between the two
is noise.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from emitter import SHAPES, Shape
from readers import READERS

HERE = Path(__file__).parent
LIMIT, CONTROL, OURS = "recv loop", "recv loop, again", "ours"
OTHERS = ("http.client", "requests iter_lines", "httpx-sse", "aiohttp", "openai SDK")
BACK_TO_BACK = 0.0
SHORT = "chunked, ttft 5 ms"  # five pieces: what a request costs without any
Run = dict[str, Any]
Runs = dict[str, list[Run]]


def percentile(values: list[float], share: float) -> float:
    """The value below which `share` of the values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def p50(run: Run) -> float:
    """The median delay of a run's pieces, ms."""
    return statistics.median(run["delays_ms"])


def ratios(runs: Runs, name: str, figure: Callable[[Run], float]) -> list[float]:
    """A reader's figure over the limit's, round by round."""
    return [figure(a) / figure(b) for a, b in zip(runs[name], runs[LIMIT])]


def noise(runs: Runs, figure: Callable[[Run], float]) -> float:
    """How far the limit lies from itself within a round: the largest factor, either way."""
    return max(max(ratio, 1.0 / ratio) for ratio in ratios(runs, CONTROL, figure))


def read_once(name: str, port: int, number: int) -> Run:
    """One reader, one stream, a process of its own."""
    done = subprocess.run(
        [sys.executable, str(HERE / "readers.py"), name, str(port), str(number)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise SystemExit(f"{name} on {SHAPES[number].name}: {done.stderr[-500:]}")
    found: Run = json.loads(done.stdout)
    return found


def measure(rounds: int) -> dict[str, Runs]:
    """All runs by shape and reader. The order of the readers turns from round to round."""
    emitter = subprocess.Popen(
        [sys.executable, str(HERE / "emitter.py")], stdout=subprocess.PIPE, text=True
    )
    assert emitter.stdout is not None
    found: dict[str, Runs] = {}
    try:
        port = int(emitter.stdout.readline())
        for number, shape in enumerate(SHAPES):
            runs: Runs = defaultdict(list)
            for turn in range(rounds):
                names = list(READERS)
                for name in names[turn % len(names) :] + names[: turn % len(names)]:
                    runs[name].append(read_once(name, port, number))
            found[shape.name] = dict(runs)
            print(f"measured: {shape.name}", file=sys.stderr)
    finally:
        emitter.kill()
        emitter.wait()
    return found


def a_further_piece(found: dict[str, Runs], shape: Shape, name: str) -> list[float]:
    """CPU time of a piece (us), what the request itself costs left out, by round."""
    fixed = statistics.median(run["cpu_us_a_piece"] * run["pieces"] for run in found[SHORT][name])
    return [
        max(run["cpu_us_a_piece"] * run["pieces"] - fixed, 0.0) / run["pieces"]
        for run in found[shape.name][name]
    ]


def print_shape(found: dict[str, Runs], shape: Shape) -> None:
    """The table of one shape."""
    runs = found[shape.name]
    print(f"\n### {shape.name} ({shape.events:,} events of {shape.size:,} bytes)\n")
    columns = ("reader", "p50", "/ limit", "p90", "p99", "max", "first piece", "TTFT error",
               "CPU a piece", "peak", "lost")  # fmt: skip
    print("| " + " | ".join(columns) + " |")
    print("|---" * len(columns) + "|")
    for name in READERS:
        delays = [delay for run in runs[name] for delay in run["delays_ms"]]
        lost = sum(shape.events - run["pieces"] for run in runs[name])
        order = "" if all(run["in_order"] for run in runs[name]) else ", misordered"
        ratio = statistics.median(ratios(runs, name, p50))
        figures = [
            us(statistics.median(map(p50, runs[name]))),
            f"{ratio:.2f}",
            us(percentile(delays, 0.9)),
            us(percentile(delays, 0.99)),
            us(max(delays)),
            us(statistics.median(run["delays_ms"][0] for run in runs[name])),
            us(statistics.median(run["ttft_error_ms"] for run in runs[name])),
            f"{statistics.median(run['cpu_us_a_piece'] for run in runs[name]):.0f} µs",
            f"{max(run['peak_mb'] for run in runs[name]):.0f} MB",
            f"{lost}{order}",
        ]
        print(f"| {name} | " + " | ".join(figures) + " |")


def us(milliseconds: float) -> str:
    """A time for people."""
    return f"{milliseconds * 1000:,.0f} µs"


def claims(found: dict[str, Runs]) -> list[tuple[str, bool, str]]:
    """(what is claimed, whether it holds here, the figures)."""
    spaced = [shape for shape in SHAPES if shape.gap_ms != BACK_TO_BACK and shape.events > 5]
    fast = [shape for shape in SHAPES if shape.gap_ms == BACK_TO_BACK]
    rows = []
    worst = {s.name: statistics.median(ratios(found[s.name], OURS, p50)) for s in spaced}
    name = max(worst, key=lambda shape: worst[shape])
    text = f"worst {worst[name]:.2f} ({name}), median {statistics.median(worst.values()):.2f}"
    rows.append(("median delay at most 1.5 x the limit's", worst[name] <= 1.5, text))
    firsts = {
        reader: [
            run["delays_ms"][0]
            for shape in SHAPES
            for run in found[shape.name][reader]
        ]
        for reader in READERS
    }  # fmt: skip
    ours, limit = (percentile(firsts[reader], 0.99) for reader in (OURS, LIMIT))
    rows.append((
        "p99 of the first piece at most 1.5 x the limit's", ours <= 1.5 * limit,
        f"{us(ours)} against {us(limit)}, {ours / limit:.2f}, of {len(firsts[OURS])} streams",
    ))  # fmt: skip
    better = []
    for shape in SHAPES:
        runs = found[shape.name]
        bound = noise(runs, p50)
        mine = statistics.median(map(p50, runs[OURS]))
        better += [
            f"{other} ({shape.name}: {us(statistics.median(map(p50, runs[other])))} against "
            f"{us(mine)}, noise {bound:.2f})"
            for other in OTHERS
            if statistics.median(map(p50, runs[other])) * bound < mine
        ]
    rows.append((
        "no other reader better by more than the noise, in any shape", not better,
        "; ".join(better) or f"of {len(SHAPES)} shapes x {len(OTHERS)} readers",
    ))  # fmt: skip
    fifty = [shape.name for shape in SHAPES if shape.ttft_ms == 50.0]
    mine, theirs = (
        statistics.median(run["ttft_error_ms"] for s in fifty for run in found[s][reader])
        for reader in (OURS, "http.client")
    )
    text = f"{us(mine)} against {us(theirs)}"
    rows.append(("TTFT error (50 ms) not above http.client's", mine <= theirs, text))
    cpu = {
        shape.name: statistics.median(
            a / b
            for a, b in zip(
                a_further_piece(found, shape, OURS), a_further_piece(found, shape, LIMIT)
            )
        )
        for shape in SHAPES
        if shape.events >= 1000
    }
    text = ", ".join(f"{ratio:.2f} ({shape})" for shape, ratio in cpu.items())
    rows.append(("CPU a piece at most 2 x the limit's", max(cpu.values()) <= 2.0, text))
    for shape in fast:
        runs = found[shape.name]
        late = [
            percentile([a - b for a, b in zip(x["delays_ms"], y["delays_ms"])], 0.99)
            for x, y in zip(runs[OURS], runs[LIMIT])
        ]
        rows.append((
            f"{shape.name}: stamps at p99 no more than 5 ms behind the limit's",
            statistics.median(late) <= 5.0,
            f"{us(statistics.median(late))} (rounds: {', '.join(map(us, late))})",
        ))  # fmt: skip
    lost = sum(
        shape.events - run["pieces"] + (not run["in_order"])
        for shape in SHAPES for run in found[shape.name][OURS]
    )  # fmt: skip
    rows.append(("no piece lost or misordered", lost == 0, f"{lost}"))
    changes = [
        a / b
        for shape in spaced
        for a, b in zip(
            map(p50, found[shape.name]["ours, with evidence"]), map(p50, found[shape.name][OURS])
        )
    ]
    change = statistics.median(changes)
    bound = max(noise(found[shape.name], p50) for shape in spaced)
    rows.append((
        "writing the evidence adds nothing to the delay", 1 / bound <= change <= bound,
        f"with / without: {change:.2f} (noise {bound:.2f})",
    ))  # fmt: skip
    return rows


def plot(found: dict[str, Runs], path: str) -> None:
    """Median delay over the limit's, by shape and reader."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "pytest-llm-latency"
    from matplotlib import pyplot as plt

    readers = (CONTROL, OURS, *OTHERS)
    figure, axes = plt.subplots(figsize=(9, 6), layout="constrained")
    for index, reader in enumerate(readers):
        values = [statistics.median(ratios(found[s.name], reader, p50)) for s in SHAPES]
        heights = [
            len(SHAPES) - row + (index - len(readers) / 2) * -0.1 for row in range(len(values))
        ]
        axes.plot(
            values, heights, "o" if reader != OURS else "D", label=reader,
            markersize=5 if reader != OURS else 8, zorder=3 if reader == OURS else 2,
        )  # fmt: skip
    axes.axvline(1.0, color="grey", linewidth=1)
    axes.set_xscale("log")
    axes.set_yticks([len(SHAPES) - row for row in range(len(SHAPES))], [s.name for s in SHAPES])
    axes.set_xlabel("median delay from write to stamp, over a bare recv loop's (1 = the limit)")
    axes.grid(axis="x", alpha=0.3)
    axes.legend(loc="upper right", fontsize="small")
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Measure, or read what was measured; print."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("rounds", type=int, nargs="?", default=5)
    parser.add_argument("--json", type=Path, help="keep the runs there; read if it exists")
    parser.add_argument("--plot", help="draw into this SVG file (needs matplotlib)")
    options = parser.parse_args()
    if options.json is not None and options.json.exists():
        found = json.loads(options.json.read_text())
    else:
        found = measure(options.rounds)
        if options.json is not None:
            options.json.write_text(json.dumps(found))
    print("| claim | here | figures |\n|---|---|---|")
    for claim, holds, figures in claims(found):
        print(f"| {claim} | {'holds' if holds else 'DOES NOT HOLD'} | {figures} |")
    for shape in SHAPES:
        print_shape(found, shape)
    if options.plot:
        plot(found, options.plot)


if __name__ == "__main__":
    main()
