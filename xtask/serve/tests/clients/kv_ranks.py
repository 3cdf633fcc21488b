"""A router's view of a server with two engines: each is a source of its own, and what its events say is what requests find.

Arguments: address of the server, topic of the events.
"""

import json
import random

from kv_events import SIZE, TOPIC, Index, ask, post, sources


def main():
    listed = sources()
    assert [source["data_parallel_rank"] for source in listed] == [0, 1], listed
    assert all(source["topic"] == TOPIC for source in listed), listed
    for address in ["endpoint", "replay_endpoint"]:
        ports = [int(source[address].rsplit(":", 1)[1]) for source in listed]
        assert ports[1] == ports[0] + 1, "the port of a rank is that of the first one and its number"
    rng = random.Random(5)
    ranks = [Index(source) for source in listed]
    subscribed = [rank.subscribe() for rank in ranks]
    prompts = [[rng.randrange(100) for _ in range(3 * SIZE + 1)] for _ in range(12)]
    assert all(ask(prompt)["device"] == 0 for prompt in prompts)
    holds = lambda rank, prompt: rank.find(prompt, None, ["GPU"]) == 3 * SIZE
    missing = lambda: [prompt for prompt in prompts if not any(holds(rank, prompt) for rank in ranks)]
    for rank in ranks:
        rank.catch_up(lambda: rank.taken > 0)
    while missing():
        for rank in ranks:
            rank.catch_up(lambda: len(rank.replay(rank.next)) == 0)
    counts = [sum(holds(rank, prompt) for prompt in prompts) for rank in ranks]
    assert sum(counts) == len(prompts) and min(counts) > 0, counts
    # They are found again where they are, so that no other engine hears of them.
    before = [rank.taken for rank in ranks]
    assert all(ask(prompt)["device"] == 3 * SIZE for prompt in prompts)
    assert [len(rank.replay(0)) for rank in ranks] == before
    # What comes now comes to the subscribers, from one rank or both.
    more = [[100 + rng.randrange(20) for _ in range(SIZE + 1)] for _ in range(6)]
    for prompt in more:
        ask(prompt)
    found = lambda: all(any(rank.find(prompt, None, ["GPU"]) for rank in ranks) for prompt in more)
    for socket, rank in zip(subscribed, ranks):
        while not found() and socket.poll(2000):
            rank.take(socket.recv_multipart())
    assert found(), "subscribers do not hear of new prompts"
    assert post("/reset_prefix_cache", {})
    for socket, rank in zip(subscribed, ranks):
        rank.until(socket, lambda: not rank.held["GPU"])
    print(json.dumps({"prompts": counts}))


main()
