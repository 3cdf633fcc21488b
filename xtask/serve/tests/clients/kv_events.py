"""A router's view of a server: what it knows from events of the KV cache is what requests find.

Arguments: address of the server, topic of the events.
The structs are those of vLLM 0.33 (vllm/distributed/kv_events.py), and refuse fields that vLLM does not have.
"""

import json
import random
import socket as sockets
import subprocess
import sys
import time
import urllib.request
from typing import Any

import msgspec
import zmq

BASE, TOPIC = sys.argv[1:]
SIZE = 16
END = (-1).to_bytes(8, "big", signed=True)


class KVCacheEvent(msgspec.Struct, omit_defaults=True, gc=False, tag=True, forbid_unknown_fields=True):
    pass


class BlockStored(KVCacheEvent):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None
    lookahead_token_ids: list[int] | None = None


class BlockRemoved(KVCacheEvent):
    block_hashes: list[int]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class AllBlocksCleared(KVCacheEvent):
    pass


class KVEventBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


decode = msgspec.msgpack.Decoder(KVEventBatch).decode
context = zmq.Context.instance()


class Index:
    """What the events of a source say."""

    def __init__(self, source):
        self.source = source
        self.hashes = {}  # (parent, tokens, extra keys) -> hash
        self.held = {"GPU": set(), "CPU": set(), "STORAGE": set()}
        self.next = None
        self.taken = 0
        self.cleared = 0

    def take(self, frames):
        topic, seq, payload = frames
        assert topic == self.source["topic"].encode(), topic
        seq = int.from_bytes(seq, "big")
        batch = decode(payload)
        if self.next is None:
            # A server that starts again goes on above the numbers of the one before, and holds none of its blocks.
            assert abs(time.time() - seq / 1e6) < 600, seq
            assert isinstance(batch.events[0], AllBlocksCleared), batch
            self.next = seq
        if seq < self.next:
            return  # Both sent again and received.
        assert seq == self.next, f"{seq} follows {self.next - 1}"
        self.next += 1
        self.taken += 1
        assert abs(time.time() - batch.ts) < 600, batch
        assert batch.data_parallel_rank == self.source["data_parallel_rank"], batch
        for event in batch.events:
            self.follow(event)

    def follow(self, event):
        if isinstance(event, BlockStored):
            count = len(event.block_hashes)
            assert event.block_size == SIZE and len(event.token_ids) == SIZE * count, event
            assert len(event.extra_keys) == count and event.kv_cache_spec_kind == "full_attention", event
            parent = event.parent_block_hash
            for index, (block, keys) in enumerate(zip(event.block_hashes, event.extra_keys)):
                tokens = tuple(event.token_ids[SIZE * index : SIZE * (index + 1)])
                assert self.hashes.setdefault((parent, tokens, keys), block) == block
                assert block not in self.held[event.medium], "stored twice"
                self.held[event.medium].add(block)
                parent = block
        elif isinstance(event, BlockRemoved):
            for block in event.block_hashes:
                self.held[event.medium].remove(block)
        else:
            self.cleared += 1
            self.held = {medium: set() for medium in self.held}

    def find(self, tokens, salt, media):
        """Number of leading tokens whose blocks the media hold."""
        parent, found = None, 0
        for start in range(0, len(tokens) - SIZE + 1, SIZE):
            keys = (salt,) if salt and start == 0 else None
            parent = self.hashes.get((parent, tuple(tokens[start : start + SIZE]), keys))
            if parent is None or not any(parent in self.held[medium] for medium in media):
                break
            found += SIZE
        return found


    def subscribe(self):
        socket = context.socket(zmq.SUB)
        socket.setsockopt(zmq.SUBSCRIBE, self.source["topic"][:3].encode())
        socket.connect(self.source["endpoint"])
        return socket

    def replay(self, start):
        """The frames of all batches from a number on."""
        socket = context.socket(zmq.DEALER)
        socket.connect(self.source["replay_endpoint"])
        socket.send_multipart([b"", start.to_bytes(8, "big")])
        batches = []
        while socket.poll(20_000):
            empty, topic, seq, payload = socket.recv_multipart()
            assert empty == b""
            if seq == END:
                assert (topic, payload) == (b"", b"")
                socket.close()
                return batches
            batches.append([topic, seq, payload])
        raise AssertionError("no end of the replay")

    def catch_up(self, told):
        """Who subscribes late misses the first batches, and asks for them."""
        deadline = time.time() + 20
        while not told():
            assert time.time() < deadline, "events are not sent again"
            for frames in self.replay(self.next or 0):
                self.take(frames)

    def until(self, socket, told):
        deadline = time.time() + 20
        while not told():
            assert time.time() < deadline, "events do not come"
            if socket.poll(100):
                self.take(socket.recv_multipart())


def post(path, body):
    data = json.dumps(body).encode()
    request = urllib.request.Request(BASE + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)


def ask(tokens, salt=None):
    body = {"prompt": tokens, "max_tokens": 1} | ({"cache_salt": salt} if salt else {})
    return post("/v1/completions", body)["pagoda"]["cached_tokens"]


def sources():
    with urllib.request.urlopen(BASE + "/kv_event_sources") as reply:
        return json.load(reply)


def nonsense(endpoint):
    """Connections that say nothing, and what nobody understands."""
    host, port = endpoint.removeprefix("tcp://").split(":")
    open_ones = [sockets.create_connection((host, int(port))) for _ in range(3)]
    open_ones[1].sendall(b"GET / HTTP/1.1\r\n\r\n" * 100)
    open_ones[2].sendall(b"\xff" * 10 + b"\x03\x00" + b"\xff" * 1000)
    return open_ones


def killed(index):
    """A subscriber whose process is killed in the middle of a message, at any time."""
    run = f"import zmq; s = zmq.Context().socket(zmq.SUB); s.subscribe(b''); s.connect('{index.source['endpoint']}')"
    run += "\nwhile True: s.recv(); print(1, flush=True)"
    return subprocess.Popen([sys.executable, "-c", run], stdout=subprocess.PIPE)


def main():
    [source] = sources()
    assert (source["data_parallel_rank"], source["topic"]) == (0, TOPIC), source
    rng = random.Random(7)
    index = Index(source)
    socket, other = index.subscribe(), context.socket(zmq.SUB)
    other.setsockopt(zmq.SUBSCRIBE, b"another topic")
    other.connect(source["endpoint"])
    stuck = context.socket(zmq.SUB)
    stuck.setsockopt(zmq.RCVHWM, 1)
    stuck.setsockopt(zmq.SUBSCRIBE, b"")
    stuck.connect(source["endpoint"])
    open_ones = nonsense(source["endpoint"]) + nonsense(source["replay_endpoint"])
    child = killed(index)
    ask([5] * 20)
    index.catch_up(lambda: index.find([5] * 20, None, ["GPU"]))
    everything = ["GPU", "CPU", "STORAGE"]
    counts = {"device": 0, "host": 0, "disk": 0, "remote": 0}
    for turn in range(80):
        family, salt = rng.randrange(12), rng.choice([None, None, "a tenant"])
        tokens = [(family * 7 + i * i) % 100 for i in range(rng.choice([37, 70, 150]))]
        most = (len(tokens) - 1) // SIZE * SIZE
        device = min(index.find(tokens, salt, ["GPU"]), most)
        whole = min(index.find(tokens, salt, everything), most)
        cached = ask(tokens, salt)
        assert (cached["device"], sum(cached.values())) == (device, whole), (turn, cached, device, whole)
        for tier in counts:
            counts[tier] += cached[tier]
        # Batches come in order: those before a new prompt have come once that is found.
        mark = [100 + rng.randrange(20) for _ in range(SIZE + 1)]
        ask(mark)
        index.until(socket, lambda: index.find(mark, None, ["GPU"]) == SIZE)
        if turn == 40:
            assert child.stdout.readline() == b"1\n"
            child.kill()
            child.wait()
            index.subscribe().close(linger=0)
    assert all(counts[tier] > 0 for tier in ["device", "host", "disk"]), counts
    assert not other.poll(0), "a message of another topic"
    # Everything again, the last part again, and what is not there yet.
    again = Index(source)
    for frames in index.replay(0):
        again.take(frames)
    assert (again.held, again.next) == (index.held, index.next)
    assert [seq for _, seq, _ in index.replay(index.next - 3)] == [
        seq.to_bytes(8, "big") for seq in range(index.next - 3, index.next)
    ]
    assert index.replay(index.next + 10**9) == index.replay(2**64 - 1) == []
    # Who asks for nonsense gets no answer, and others get theirs.
    for request in [[b"", b"\0"], [b"x"], [b"", b"", b"", b""]]:
        bad = context.socket(zmq.DEALER)
        bad.connect(source["replay_endpoint"])
        bad.send_multipart(request)
        assert not bad.poll(300)
        bad.close(linger=0)
    assert len(index.replay(0)) == index.taken
    below = index.held["STORAGE"]
    assert below and post("/reset_prefix_cache", {})
    index.until(socket, lambda: not index.held["GPU"])
    assert index.cleared == 1 and index.held["STORAGE"] == below, "the tiers keep their blocks"
    for connection in open_ones:
        connection.close()
    print(json.dumps({"batches": index.taken, "found": counts}))


if __name__ == "__main__":
    main()
