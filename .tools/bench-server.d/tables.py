#!/usr/bin/env python3
"""tables.py OUT: the reports of a run of bench-server as the tables of server/BENCHMARKS.md."""
import glob, json, statistics, sys
out = sys.argv[1]
SECTIONS = [
 ("How long until every member has a message?", "Counted from when each send was due. The server's disk, its clients and the load test share the machine.", [
  ("paced-10", "200/s into 10", ["delivery p50", "delivery p99", "ack p99", "server CPU", "server allocations"]),
  ("paced-100", "50/s into 100", ["delivery p50", "delivery p99", "ack p99", "server CPU", "server allocations"])]),
 ("How much goes into one group?", "64 callers, each sends one message after the other.", [
  ("closed-10", "group of 10", ["sends", "delivered", "delivery p50", "delivery p99", "server CPU", "server allocations", "own CPU"]),
  ("closed-100", "group of 100", ["sends", "delivered", "delivery p50", "delivery p99", "server CPU", "server allocations", "own CPU"])]),
 ("What does a lone send cost the server?", "So few that hardly one shares a commit or a transaction with another. What the server does anyway, idle, is in it.", [
  ("lone-10", "50/s into 10", ["server CPU", "server allocations", "delivery p50"]),
  ("lone-100", "25/s into 100", ["server CPU", "server allocations", "delivery p50"])]),
 ("What is the least a send can cost here?", "", []),
 ("What does a member of a large group cost?", "Servers that allow 1,000 members; divide by the members, and set it beside the groups of 100 above.", [
  ("closed-1000", "group of 1,000, 64 callers", ["sends", "delivered", "server CPU"]),
  ("lone-1000", "5/s into 1,000", ["server CPU", "server allocations", "delivery p50", "delivery p99"])]),
 ("How many durable sends?", "Over 256 chats of two, HTTP/1.1, nobody listens.", [
  ("durable-1", "1 caller", ["sends", "ack p50", "ack p99", "server CPU"]),
  ("durable-16", "16 callers", ["sends", "ack p50", "ack p99", "server CPU"]),
  ("durable-128", "128 callers", ["sends", "ack p50", "ack p99", "server CPU"])]),
 ("How many small calls?", "32 callers read a chat again and again.", [
  ("reads-1", "HTTP/1.1", ["reads", "read p50", "read p99", "server CPU", "server allocations", "own CPU"]),
  ("reads-2", "HTTP/2", ["reads", "read p50", "read p99", "server CPU", "server allocations", "own CPU"])]),
 ("What do receipts cost?", "200/s into 10, and everybody marks every message; beside the same without, above.", [
  ("receipts", "with acknowledgements each 100 ms",
   ["delivery p50", "delivery p99", "mark p50", "mark p99", "recorded p99", "server CPU"]),
  ("receipts-calls", "a call for each message", ["delivery p50", "delivery p99", "mark p50", "mark p99", "server CPU"])]),
 ("What does an idle stream cost?", "2,000 streams, h2c, a server that has just been started.", [
  ("idle-own", "a connection each", ["memory of a stream", "heap and stacks of a stream", "server cores"]),
  ("idle-shared", "ten to a connection", ["memory of a stream", "heap and stacks of a stream", "server cores"])]),
 ("How fast are all back?", "1,000 clients that connect at once; 100 clients that missed 20 messages in each of ten chats.", [
  ("storm", "connect", ["all live", "live p50", "live p99", "server CPU"]),
  ("sync", "catch up", ["messages", "sync p50", "sync p99", "client p50", "server CPU"])]),
]
FLOOR = """A small process (`.tools/bench-server.d/floor`), measured in the same turns: it reads 300 bytes, appends them to a file, syncs it,
answers, and writes them to a connection for each member. No protocol, no store, no durable path."""
def load(row, n): return [json.load(open(p)) for p in sorted(glob.glob(f"{out}/{row}.{n}.*.json"))]
def fmt(v): return "" if v is None else f"{v:,.0f}" if abs(v) >= 100 else f"{v:.3g}"
def med(reports, figure):
    v = [f["value"] for r in reports for f in r["median"] if f["name"] == figure]
    return statistics.median(v) if v else None
fs = {n: [(r["machine"].get("fsync_p50_ms", 0), r["machine"].get("fsync_p99_ms", 0)) for p in glob.glob(f"{out}/*.{n}.*.json") for r in [json.load(open(p))]] for n in ("before", "after")}
first = json.load(open(sorted(glob.glob(out + "/*.json"))[0]))
m = first["machine"]
print(f"{m['processors']} × {m['model']}, {m['os']}, {m['go']}, {first['began'][:10]}; fsync of 4 KB in the data directory, medians of the runs:")
print("; ".join(f"{n} p50 {statistics.median(a for a, _ in v):.2f} ms, p99 {statistics.median(b for _, b in v):.2f} ms" for n, v in fs.items() if v) + ".")
def floors(title):
    lines = []
    for row, label in (("paced-10", "200/s into 10"), ("paced-100", "50/s into 100"), ("lone-10", "50/s into 10"), ("lone-100", "25/s into 100")):
        runs = [json.load(open(p)) for p in glob.glob(f"{out}/floor.{row}.*.txt")]
        parley = load(row, "after") or load(row, "before")
        for figure, unit in (("server CPU", "µs/send"), ("delivery p50", "ms")):
            if not runs or not parley: continue
            f, p = statistics.median(r[figure] for r in runs), med(parley, figure)
            lines.append(f"| {label} | {figure}, {unit} | {fmt(f)} | {fmt(p)} | {p/f:.1f} × |")
            label = ""
    if lines: print(f"\n### {title}\n\n{FLOOR}\n\n| load | figure | least | Parley | ratio |\n|---|---|---|---|---|", *lines, sep="\n")
for title, text, rows in SECTIONS:
    if not rows: floors(title)
    body = []
    for row, label, figures in rows:
        b, a = load(row, "before"), load(row, "after")
        if not b and not a: continue
        unit = {f["name"]: f["unit"] for r in b + a for f in r["median"]}
        line = " ".join((b + a)[0]["options"] or [])
        rounds = len(b or a)
        body.append((f"`go run ./server/load {(b+a)[0]['scenario']} {line}`".replace(" `", "`"), label, rounds, [
            (f, unit.get(f, ""), med(b, f), med(a, f)) for f in figures]))
    if not body: continue
    print(f"\n### {title}\n\n{text}\n")
    for cmd, label, rounds, _ in body: print(f"- {label}: {cmd}, medians of {rounds}")
    print("\n| load | figure | before | after | ratio |\n|---|---|---|---|---|")
    for _, label, _, figures in body:
        for f, u, b, a in figures:
            ratio = f"{a/b:.2f} ×" if a is not None and b else ""
            name = f"{f}, {u}" if not u.startswith("/") else f"{f}{u}" if u == "/s" else f"{f} {u}"
            print(f"| {label} | {name.rstrip(', ')} | {fmt(b)} | {fmt(a)} | {ratio} |")
            label = ""
