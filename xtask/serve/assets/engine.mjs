// The engine as it runs, from the server's events.

import { call, reason } from "./key.mjs";
import { blockMap, cellsOf, colourOf, reads as drawReads, row as drawRow, spark } from "./draw.mjs";
import { History } from "./history.mjs";
import { events } from "./sse.mjs";

const element = (id) => document.getElementById(id);
const count = (number) => Math.round(number).toLocaleString("en");
const percent = (share) => `${(share * 100).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;
const clock = () => performance.now() / 1000;

/** Rates on a spark line. */
const SPARK = 240;

/** Seconds before the next try when the server is gone. */
const RETRY_S = 2;

let history = new History();
const rowsShown = new Map();
let view = null;
/** The request that was chosen by hand, and the one that is looked at. */
let picked = null;
let watched = null;
/** The last reads of a request, which outlive it. */
let reads = null;
let stream = null;
/** When the server was last heard of, and how many requests wait. */
let lastSeen = null;
let queued = 0;
/** Index of the engine that is shown. */
let engine = 0;

function tell(state, text) {
  const status = element("status");
  if (status.textContent !== text) status.textContent = text;
  status.dataset.state = state;
}

/** Watches while the page is seen. */
export async function watch() {
  for (;;) {
    await seen();
    stream = new AbortController();
    try {
      await follow(stream.signal);
      gone("the server has stopped");
    } catch (error) {
      if (stream.signal.aborted) continue;
      // A browser has no reason for a server that does not answer.
      gone(error instanceof TypeError ? null : error.message);
    }
    await new Promise((resolve) => setTimeout(resolve, RETRY_S * 1000));
  }
}

/** Greys what is shown: it is of the past. */
function gone(why) {
  const since = lastSeen === null ? "" : ` since ${lastSeen.toLocaleTimeString()}`;
  tell("gone", `${why ?? `no answer from the server${since}`}, trying again`);
  element("engine").classList.add("stale");
}

/** Waits until the page is seen. */
function seen() {
  if (!document.hidden) return Promise.resolve();
  return new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
}

document.addEventListener("visibilitychange", () => document.hidden && stream?.abort());

async function follow(signal) {
  const path = `live/events?engine=${engine}${watched === null ? "" : `&seq=${watched}`}`;
  const response = await call(path, { signal });
  if (!response.ok) throw new Error(await reason(response));
  for await (const { name, data } of events(response.body)) {
    const event = JSON.parse(data);
    lastSeen = new Date();
    ({ queued } = event);
    element("engine").classList.remove("stale");
    if (name === "busy") {
      tell("busy", `in a step for ${event.since_s.toFixed(0)} s`);
      element("waiting").textContent = queued > 0 ? `${count(queued)} waiting` : "none waiting";
    }
    if (name === "view") take(event);
  }
}

function take(event) {
  view = event;
  const now = clock();
  history.take(event, now);
  tell("live", "live");
  element("model").textContent = event.model;
  engines(event.engines);
  const own = event.reads.find((read) => read.seq === watched);
  if (own) reads = own;
  // The newest request is looked at until it ends, unless one was chosen.
  const open = history.requests.get(watched);
  const ended = watched === null || !open || open.end !== null;
  if (picked === null && ended) look(history.newest()?.seq ?? watched);
  draw();
}

/** Offers a choice among engines, if there are several. */
function engines(number) {
  const choice = element("chosen-engine");
  element("engines").hidden = number < 2;
  if (choice.length !== number) choice.replaceChildren(...Array.from({ length: number }, (_, at) => new Option(at, at)));
}

element("chosen-engine").addEventListener("change", (event) => {
  engine = Number(event.target.value);
  // Each engine counts its sequences for itself.
  history = new History();
  [view, picked, watched, reads] = [null, null, null, null];
  stream?.abort();
});

/** Looks at a request. */
function look(seq) {
  if (seq === watched) return;
  watched = seq;
  reads = null;
  stream.abort();
}

/** Chooses a request by hand; again, to look at the newest one. */
function pick(seq) {
  picked = picked === seq ? null : seq;
  if (picked !== null) look(picked);
  draw();
}

function draw() {
  if (view === null) return;
  tiles();
  timeline();
  map();
  attention();
}

/** Where the newest request stands, until its first token. */
export function progress() {
  const request = history.newest();
  if (request?.activity === "prefill") return `reading the prompt: ${count(request.computed)} of ${count(request.prompt_tokens)} tokens`;
  const before = Math.max(queued - 1, 0);
  return queued > 0 ? `waiting, ${before === 0 ? "next in the queue" : `${count(before)} before you`}` : "waiting for the first token";
}

function tiles() {
  const { snapshot, queued } = view;
  const { cached } = snapshot.totals;
  const { blocks, prefix } = snapshot;
  element("decode-rate").textContent = count(snapshot.decode_tok_s);
  element("prefill-rate").textContent = count(snapshot.prefill_tok_s);
  spark(element("decode-spark"), history.decode, SPARK);
  spark(element("prefill-spark"), history.prefill, SPARK);
  element("running").textContent = count(snapshot.running.length);
  const waiting = Math.max(queued, snapshot.waiting.length);
  const preempted = snapshot.totals.preemptions;
  element("waiting").textContent =
    (waiting > 0 ? `${count(waiting)} waiting` : "none waiting") + (preempted > 0 ? `, ${count(preempted)} preemptions` : "");
  element("kv-share").textContent = percent(blocks.used / Math.max(blocks.total, 1));
  element("kv-note").textContent = `${count(blocks.used)} of ${count(blocks.total)}`;
  element("hit-share").textContent = prefix.queried_tokens > 0 ? percent(prefix.hit_tokens / prefix.queried_tokens) : "–";
  const tiers = Object.entries(cached).filter(([tier, tokens]) => tier === "device" || tokens > 0);
  const { latency, refused } = view;
  const ms = (seconds) => (seconds === null ? "–" : seconds < 1 ? `${Math.round(seconds * 1000)} ms` : `${seconds.toFixed(1)} s`);
  element("first-p50").textContent = ms(latency.first_p50_s);
  element("first-note").textContent = `99 %: ${ms(latency.first_p99_s)}; between tokens ${ms(latency.between_p50_s)}, 99 %: ${ms(latency.between_p99_s)}`;
  const errors = Object.values(snapshot.tiers).reduce((sum, tier) => sum + (tier?.errors ?? 0), 0);
  element("refused").textContent = count(refused);
  element("refused-note").textContent = `${count(errors)} errors of tiers, up for ${uptime(view.uptime_s)}`;
  element("hit-note").textContent = tiers.map(([tier, tokens]) => `${tier} ${count(tokens)}`).join(", ");
}

function uptime(seconds) {
  const hours = seconds / 3600;
  return hours < 1 ? `${Math.floor(seconds / 60)} min` : hours < 48 ? `${Math.floor(hours)} h` : `${Math.floor(hours / 24)} days`;
}

function timeline() {
  const now = clock();
  const list = element("timeline");
  const rows = history.rows(now);
  element("no-requests").hidden = rows.length > 0;
  if (view.snapshot.totals.steps > 0) element("no-requests").textContent = "No requests in the last minute.";
  for (const [seq, shown] of rowsShown) {
    if (rows.every((request) => request.seq !== seq)) {
      shown.remove();
      rowsShown.delete(seq);
    }
  }
  rows.forEach((request, at) => {
    const shown = rowsShown.get(request.seq) ?? newRow(request.seq);
    if (list.children[at] !== shown) list.insertBefore(shown, list.children[at] ?? null);
    const [text, detail] = describe(request);
    const label = shown.querySelector("b");
    if (label.textContent !== text) label.textContent = text;
    const small = shown.querySelector("small");
    if (small.textContent !== detail) small.textContent = detail;
    shown.classList.toggle("ended", request.end !== null);
    shown.setAttribute("aria-selected", String(request.seq === watched));
    shown.setAttribute("aria-label", `Request ${text}, ${request.activity}, ${detail}`);
    drawRow(shown.querySelector("canvas"), request, now);
  });
}

function describe(request) {
  const { seq, activity, prompt_tokens: prompt, generated, computed } = request;
  const progress = activity === "prefill" ? `${count(computed)} of ${count(prompt)}` : `${count(prompt)} + ${count(generated)}`;
  return [`#${seq}`, `${progress} tokens`];
}

function newRow(seq) {
  const shown = document.createElement("div");
  shown.className = "row";
  shown.setAttribute("role", "option");
  shown.tabIndex = 0;
  shown.dataset.seq = seq;
  const name = document.createElement("span");
  name.className = "name";
  const dot = document.createElement("i");
  dot.style.background = colourOf(seq);
  name.append(dot, document.createElement("b"), document.createElement("small"));
  shown.append(name, document.createElement("canvas"));
  shown.addEventListener("click", () => pick(seq));
  shown.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") pick(seq);
    else if (event.key === "ArrowDown") shown.nextElementSibling?.focus();
    else if (event.key === "ArrowUp") shown.previousElementSibling?.focus();
    else return;
    event.preventDefault();
  });
  rowsShown.set(seq, shown);
  return shown;
}

let cellAt = () => null;
let readAt = () => null;

function map() {
  const { map: blocks, snapshot } = view;
  const { used, total, shared, cached, block_size: tokens, block_bytes: bytes, host } = snapshot.blocks;
  const canvas = element("map");
  cellAt = blockMap(canvas, blocks, picked);
  canvas.setAttribute(
    "aria-label",
    `Of ${count(total)} KV blocks, ${count(used)} are held; sharing saves ${count(shared)}; ${count(cached)} can be hit`,
  );
  // What the map shows, for those who read it with other means.
  const kinds = {};
  for (const { kind } of cellsOf(blocks)) kinds[kind] = (kinds[kind] ?? 0) + 1;
  canvas.dataset.cells = JSON.stringify(kinds);
  const places = host > 0 ? `, ${count(host)} of them in host memory` : "";
  const cell = blocks.blocks_per_cell > 1 ? ` Each square stands for ${count(blocks.blocks_per_cell)} blocks.` : "";
  element("map-note").textContent =
    `${count(total)} blocks of ${tokens} tokens and ${size(bytes)}${places}; ${count(shared)} more would be held ` +
    `if requests shared none, and ${count(cached)} keep prefixes for later requests.${cell}`;
  const traffic = ["host", "disk", "remote"].filter((tier) => snapshot.tiers[tier]).map((tier) => {
    const { hits, misses, bytes_read: read, bytes_written: written } = snapshot.tiers[tier];
    return `${tier}: ${count(hits)} hits, ${count(misses)} misses, ${size(read)} read, ${size(written)} written`;
  });
  element("tiers").textContent = traffic.length > 0 ? `Tiers below: ${traffic.join("; ")}.` : "";
}

function size(bytes) {
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  const unit = Math.min(Math.floor(Math.log2(Math.max(bytes, 1)) / 10), units.length - 1);
  const value = bytes / 1024 ** unit;
  return `${value.toFixed(unit > 0 && value < 10 ? 1 : 0)} ${units[unit]}`;
}

function attention() {
  const request = history.requests.get(watched);
  const figures = [];
  const { policy } = view;
  if (request) {
    figures.push(["density", percent(request.density)]);
    // A bound of nothing is true, and says nothing.
    if (request.bound > 0) figures.push(["certified mass, at least", percent(request.bound)]);
    if (reads) {
      figures.push(["in the last step seen", percent(reads.density)]);
      if (reads.bound > 0) figures.push(["certified then", percent(reads.bound)]);
    }
  }
  element("reads-of").textContent = request ? `request #${request.seq}, ${policy}` : policy;
  element("reads-figures").replaceChildren(...figures.map(([name, value]) => {
    const figure = document.createElement("span");
    const number = document.createElement("b");
    number.textContent = value;
    figure.append(`${name} `, number);
    return figure;
  }));
  const canvas = element("reads");
  canvas.hidden = !reads;
  if (reads) {
    readAt = drawReads(canvas, reads);
    const label = `Request ${reads.seq} read ${percent(reads.density)} of its blocks of ${reads.block_size} tokens, in ${reads.layers.length} layers`;
    canvas.setAttribute("aria-label", label);
  }
  element("reads-note").textContent = readsNote(request, policy);
}

function readsNote(request, policy) {
  if (policy === "full") {
    return "Attention is full: each step reads all blocks. With --sparse quest:page_budget=64, for example, the selection of a request appears here.";
  }
  if (reads && policy === "indexer") {
    const tokens = reads.blocks_per_column * reads.block_size;
    return `One column is ${count(tokens)} token${tokens > 1 ? "s" : ""}; the stronger its colour, the more of them the model's indexer chose.`;
  }
  if (reads) return `One column is ${count(reads.blocks_per_column)} block${reads.blocks_per_column > 1 ? "s" : ""} of ${reads.block_size} tokens; the stronger its colour, the more KV heads read it.`;
  if (request && policy === "indexer") return "So far the model's indexer has no choice: the context is short.";
  return request ? "So far the policy keeps every block of this request: its context is short." : "Choose a request to see which blocks it reads.";
}

function tooltips() {
  const tip = element("tip");
  const hover = (canvas, describe) => {
    canvas.addEventListener("pointermove", (event) => {
      const text = describe(event.offsetX, event.offsetY);
      tip.hidden = text === null;
      if (text === null) return;
      tip.textContent = text;
      tip.style.left = `${Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)}px`;
      tip.style.top = `${event.clientY + 16}px`;
    });
    canvas.addEventListener("pointerleave", () => (tip.hidden = true));
  };
  hover(element("map"), (x, y) => {
    const cell = cellAt(x, y);
    if (cell === null) return null;
    const first = cell.at * view.map.blocks_per_cell + 1;
    return `block ${count(first)}: ${cell.kind}${cell.seq === null ? "" : ` by #${cell.seq}`}`;
  });
  hover(element("reads"), (x, y) => {
    const place = readAt(x, y);
    if (place === null || !reads) return null;
    const first = place.column * reads.blocks_per_column * reads.block_size;
    const digit = place.read[place.column];
    const share = digit === "9" ? "more than 80 %" : digit === "0" ? "none" : digit === "-" ? "no choice" : `up to ${digit}0 %`;
    return `layer ${place.layer}, from token ${count(first)}: ${share}`;
  });
  element("map").addEventListener("click", (event) => {
    const seq = cellAt(event.offsetX, event.offsetY)?.seq ?? null;
    if (seq !== null) pick(seq);
  });
}

export function start() {
  tooltips();
  addEventListener("resize", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const [seq, shown] of rowsShown) shown.querySelector("i").style.background = colourOf(seq);
    draw();
  });
  // Time goes on while a step takes long.
  setInterval(() => view !== null && !document.hidden && timeline(), 500);
  watch();
}

export { draw };
