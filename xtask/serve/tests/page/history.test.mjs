// What the page makes of the server's events, without a browser. The path of a recorded event is in PAGODA_VIEW.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { History, WINDOW_S, phases } from "../../assets/history.mjs";
import { events, parse } from "../../assets/sse.mjs";

/** A view whose fields are read by their names only: a wrong name throws. */
function strict(value) {
  if (typeof value !== "object" || value === null) return value;
  if (Array.isArray(value)) return value.map(strict);
  return new Proxy(value, {
    get(target, name) {
      if (typeof name === "string" && !(name in target)) throw new Error(`the event has no ${name}`);
      return strict(target[name]);
    },
  });
}

function view(running, { ended = [], waiting = [], steps = 1 } = {}) {
  return strict({ snapshot: { running, waiting, decode_tok_s: 2, prefill_tok_s: 3, totals: { steps } }, ended });
}

function sequence(seq, activity, more = {}) {
  return { seq, activity, age_s: 1, started_s: 0.5, first_s: null, tokens: 10, prompt_tokens: 10, ...more };
}

test("a recorded event has all that is read", () => {
  const recorded = strict(JSON.parse(readFileSync(process.env.PAGODA_VIEW)));
  const history = new History();
  history.take(recorded, 1000);
  const [request] = history.rows(1000);
  assert.ok(request.seq >= 0 && request.begin < 1000 && request.end === null);
  assert.ok(phases(request, 1000).length > 0);
  assert.equal(history.newest().seq, request.seq);
});

test("phases follow one another", () => {
  const history = new History();
  history.take(view([sequence(4, "prefill")]), 100);
  history.take(view([sequence(4, "decode", { age_s: 3, first_s: 2.5, tokens: 12 })]), 102);
  history.take(view([sequence(4, "preempted", { age_s: 4, first_s: 2.5 })]), 103);
  history.take(view([sequence(4, "decode", { age_s: 5, first_s: 2.5 })]), 104);
  const [request] = history.rows(104);
  const drawn = phases(request, 105).map(({ activity, begin, end }) => [activity, begin, end]);
  assert.deepEqual(drawn, [
    ["waiting", 99, 99.5],
    ["prefill", 99.5, 101.5],
    ["decode", 101.5, 105],
    ["preempted", 103, 104],
  ]);
});

test("requests end, and are forgotten in time", () => {
  const history = new History();
  const ended = { seq: 9, sample: 0, reason: "stop", prompt_tokens: 5, generated_tokens: 7, preemptions: 0 };
  const times = { started_s: 0.25, first_s: 0.5, ended_s: 2, ago_s: 1 };
  history.take(view([], { ended: [{ ...ended, ...times }] }), 50);
  const [request] = history.rows(50);
  assert.deepEqual([request.begin, request.end, request.generated], [47, 49, 7]);
  assert.equal(history.newest(), null);
  history.take(view([]), 50 + WINDOW_S);
  assert.equal(history.requests.size, 0);
});

test("what the engine forgot has ended", () => {
  const history = new History();
  history.take(view([sequence(1, "decode")]), 10);
  history.take(view([]), 11);
  assert.equal(history.rows(11)[0].end, 11);
});

test("another engine begins anew", () => {
  const history = new History();
  history.take(view([sequence(0, "decode")], { steps: 90 }), 10);
  history.take(view([sequence(0, "prefill", { age_s: 0 })], { steps: 1 }), 20);
  assert.equal(history.rows(20)[0].begin, 20);
});

test("many requests do not fill the memory", () => {
  const history = new History();
  for (let seq = 0; seq < 1000; seq += 1) history.take(view([sequence(seq, "decode")], { steps: seq }), 10 + seq / 100);
  assert.ok(history.requests.size <= 97 && history.decode.length <= 240, `${history.requests.size}`);
});

test("events are read however they are cut", async () => {
  const text = "event: view\ndata: {\"a\":\ndata: 1}\n\n: ping\n\ndata: é\n\ndata: lost";
  const bytes = new TextEncoder().encode(text);
  for (const size of [1, 2, 7, bytes.length]) {
    const chunks = Array.from({ length: Math.ceil(bytes.length / size) }, (_, at) => bytes.slice(at * size, (at + 1) * size));
    const seen = [];
    const body = new ReadableStream({
      start(controller) {
        for (const chunk of chunks) controller.enqueue(chunk);
        controller.close();
      },
    });
    for await (const event of events(body)) seen.push(event);
    assert.deepEqual(seen, [{ name: "view", data: "{\"a\":\n1}" }, { name: "message", data: "é" }]);
  }
  assert.equal(parse(": ping"), null);
});
