"""Dynamo's indexer beside a server: what it finds is what requests find.

Arguments: address of the server, a free port.
"""

import json
import random
import subprocess
import sys
import time
import urllib.error
import urllib.request

BASE, PORT = sys.argv[1:]
SIZE = 16
RNG = random.Random(3)


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.loads(reply.read() or b"null")


def ask(tokens):
    return post(f"{BASE}/v1/completions", {"prompt": tokens, "max_tokens": 1})["pagoda"]["cached_tokens"]


def matches(tokens):
    """Leading tokens that the indexer finds, by tier."""
    found = post(f"http://127.0.0.1:{PORT}/query", {"model_name": "tiny", "token_ids": tokens})
    instance = found["instances"].get("1", {})
    return instance.get("gpu", 0), instance.get("longest_matched", 0)


def until(what, told):
    deadline = time.time() + 30
    while True:
        try:
            if told():
                return
        except urllib.error.URLError:
            pass
        assert time.time() < deadline, what
        time.sleep(0.02)


def indexer():
    run = f"import dynamo._core as core; core.run_kv_indexer(['--port', '{PORT}', '--threads', '1'])"
    child = subprocess.Popen([sys.executable, "-c", run], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with urllib.request.urlopen(f"{BASE}/kv_event_sources") as reply:
        [source] = json.load(reply)
    worker = {"instance_id": 1, "model_name": "tiny", "block_size": SIZE}
    worker |= {key: source[key] for key in ["endpoint", "replay_endpoint"]}
    until("the indexer does not start", lambda: post(f"http://127.0.0.1:{PORT}/register", worker) or True)
    return child


def mark():
    """A prompt that was never asked before. Batches come in order: those before it have come once it is found."""
    tokens = [100 + RNG.randrange(20) for _ in range(SIZE + 1)]
    ask(tokens)
    return tokens


def heard():
    tokens, deadline = mark(), time.time() + 1
    while matches(tokens)[0] != SIZE:
        if time.time() > deadline:
            return False
    return True


def check(turns, counts):
    for turn in range(turns):
        family = RNG.randrange(12)
        tokens = [(family * 7 + i * i) % 100 for i in range(RNG.choice([37, 70, 150]))]
        most = (len(tokens) - 1) // SIZE * SIZE
        gpu, longest = matches(tokens)
        cached = ask(tokens)
        told = (min(gpu, most), min(longest, most))
        assert told == (cached["device"], sum(cached.values())), (turn, told, cached)
        for tier in counts:
            counts[tier] += cached[tier]
        last = mark()
        until("it does not hear of a prompt", lambda: matches(last)[0] == SIZE)


def main():
    counts = {"device": 0, "host": 0, "disk": 0, "remote": 0}
    # Another one begins in the middle, and asks for what it missed.
    for turns in [60, 20]:
        child = indexer()
        try:
            until("no events come", heard)
            check(turns, counts)
        finally:
            child.kill()
            child.wait()
    assert all(counts[tier] > 0 for tier in ["device", "host", "disk"]), counts
    print(json.dumps(counts))


main()
