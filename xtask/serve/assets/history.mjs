// What was seen of the engine: phases of requests and rates, as far as the page shows them.

/** Seconds that the timeline shows. */
export const WINDOW_S = 60;

/** Requests that are kept. */
const MAX_REQUESTS = 96;

/** Rates that are kept: as many as the timeline has views. */
const MAX_RATES = 240;

/** Requests and rates of the last minute, from the views of the server. Times are seconds of the page's clock. */
export class History {
  constructor() {
    this.#clear();
  }

  #clear() {
    /** Requests by the number of their sequence. */
    this.requests = new Map();
    this.decode = [];
    this.prefill = [];
    this.steps = 0;
  }

  /** Takes a view that arrived at `now`. */
  take(view, now) {
    const { snapshot, ended } = view;
    // Another engine, which counts its sequences from the start.
    if (snapshot.totals.steps < this.steps) this.#clear();
    this.steps = snapshot.totals.steps;
    for (const seen of [...snapshot.running, ...snapshot.waiting]) this.#running(seen, now);
    for (const seen of ended) this.#ended(seen, now);
    this.#forget(snapshot, now);
    push(this.decode, snapshot.decode_tok_s);
    push(this.prefill, snapshot.prefill_tok_s);
  }

  /** Requests that the timeline shows, the newest first. */
  rows(now) {
    const shown = [...this.requests.values()].filter((request) => now - (request.end ?? now) < WINDOW_S);
    return shown.sort((a, b) => b.seq - a.seq);
  }

  /** The newest request that has not ended; `null` without one. */
  newest() {
    const open = [...this.requests.values()].filter((request) => request.end === null);
    return open.reduce((newest, request) => (newest && newest.seq > request.seq ? newest : request), null);
  }

  #of(seq, begin) {
    const known = this.requests.get(seq);
    if (known) return known;
    const request = { seq, begin, end: null, breaks: [] };
    this.requests.set(seq, request);
    return request;
  }

  #running(seen, now) {
    const request = this.#of(seen.seq, now - seen.age_s);
    const { activity } = seen;
    const last = request.breaks.at(-1);
    const broken = activity === "preempted" || activity === "loading";
    if (last && last.end === null && last.activity !== activity) last.end = now;
    if (broken && (!last || last.end !== null)) request.breaks.push({ activity, begin: now, end: null });
    Object.assign(request, seen, {
      started: later(request.begin, seen.started_s),
      first: later(request.begin, seen.first_s),
      generated: Math.max(0, seen.tokens - seen.prompt_tokens),
    });
  }

  #ended(seen, now) {
    const begin = now - seen.ago_s - seen.ended_s;
    const request = this.#of(seen.seq, begin);
    if (request.end !== null) return;
    const last = request.breaks.at(-1);
    request.end = request.begin + seen.ended_s;
    if (last && last.end === null) last.end = request.end;
    Object.assign(request, seen, {
      activity: "ended",
      started: later(request.begin, seen.started_s),
      first: later(request.begin, seen.first_s),
      generated: seen.generated_tokens,
    });
  }

  /** Forgets what the window no longer shows, and ends what the engine forgot. */
  #forget(snapshot, now) {
    const open = new Set([...snapshot.running, ...snapshot.waiting].map((seen) => seen.seq));
    for (const request of this.requests.values()) {
      if (request.end === null && !open.has(request.seq)) request.end = now;
    }
    const oldest = [...this.requests.values()].sort((a, b) => a.seq - b.seq);
    for (const request of oldest) {
      const left = request.end !== null && now - request.end > WINDOW_S;
      if (left || (request.end !== null && this.requests.size > MAX_REQUESTS)) this.requests.delete(request.seq);
    }
  }
}

/** Phases of a request up to `now`, as `{ activity, begin, end }`, in the order in which they are drawn. */
export function phases(request, now) {
  const end = request.end ?? now;
  const started = request.started ?? end;
  const first = request.first ?? end;
  const all = [
    { activity: "waiting", begin: request.begin, end: Math.min(started, end) },
    { activity: "prefill", begin: started, end: Math.min(first, end) },
    { activity: "decode", begin: first, end },
    ...request.breaks.map((part) => ({ ...part, end: part.end ?? end })),
  ];
  return all.filter((phase) => phase.end > phase.begin);
}

/** A hue for a request, unlike those of its neighbours. */
export function hue(seq) {
  return (seq * 137.5 + 212) % 360;
}

function later(begin, seconds) {
  return seconds === null ? null : begin + seconds;
}

function push(rates, rate) {
  rates.push(rate);
  if (rates.length > MAX_RATES) rates.shift();
}
