// The chat.

import * as chats from "./chats.mjs";
import { progress } from "./engine.mjs";
import { call, reason } from "./key.mjs";
import { copied, rendered } from "./markdown.mjs";
import { events } from "./sse.mjs";

const element = (id) => document.getElementById(id);

/** The conversation, as the server takes it. */
let messages = [];
/** Its name among those that the browser keeps. */
let id = newId();
/** Ends the answer that is being written. */
let answering = null;

/** An id that no other chat has. Without HTTPS, browsers have no UUIDs. */
function newId() {
  return crypto.randomUUID?.() ?? String(Math.random());
}

export function start() {
  element("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    send(element("prompt").value);
  });
  element("prompt").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send(element("prompt").value);
  });
  element("stop").addEventListener("click", () => answering?.abort());
  addEventListener("keydown", (event) => event.key === "Escape" && answering?.abort());
  element("new-chat").addEventListener("click", reset);
  element("chats").addEventListener("toggle", list);
  const chat = chats.current();
  if (chat) load(chat);
  for (const starter of document.querySelectorAll(".starter")) {
    starter.addEventListener("click", () => send(starter.textContent));
  }
}

function reset() {
  clear();
  chats.close();
  id = newId();
  element("prompt").focus();
}

function clear() {
  answering?.abort();
  messages = [];
  for (const shown of document.querySelectorAll(".message")) shown.remove();
  element("welcome").hidden = false;
}

/** Shows a chat that was kept. */
function load(chat) {
  clear();
  chats.open(chat.id);
  ({ id, messages } = chat);
  element("welcome").hidden = messages.length > 0;
  for (const { role, content } of messages) {
    const shown = show(role === "user" ? "user" : "answer");
    if (role === "user") shown.textContent = content;
    else new Answer(shown, content);
  }
  actions();
}

/** Lists the chats that were kept. */
function list() {
  element("chat-list").replaceChildren(...chats.all().map((chat) => {
    const item = document.createElement("li");
    const open = document.createElement("button");
    open.type = "button";
    open.textContent = chat.title || "Without a question";
    open.addEventListener("click", () => {
      load(chat);
      element("chats").open = false;
    });
    const forget = document.createElement("button");
    forget.type = "button";
    forget.className = "quiet";
    forget.textContent = "Delete";
    forget.setAttribute("aria-label", `Delete ${chat.title}`);
    forget.addEventListener("click", () => {
      chats.forget(chat.id);
      if (chat.id === id) reset();
      list();
    });
    item.append(open, forget);
    return item;
  }));
  element("no-chats").hidden = chats.all().length > 0;
}

/** Offers to copy an answer and, of the last one, to try again. */
function actions() {
  for (const old of document.querySelectorAll(".actions")) old.remove();
  const shown = [...document.querySelectorAll(".message.answer")];
  shown.forEach((answer, at) => {
    const row = document.createElement("div");
    row.className = "actions";
    const button = (name, act) => {
      const made = document.createElement("button");
      made.type = "button";
      made.className = "quiet";
      made.textContent = name;
      made.addEventListener("click", () => act(made));
      row.append(made);
    };
    if (answer.dataset.text) button("Copy", (made) => copied(made, answer.dataset.text));
    if (at === shown.length - 1) button("Try again", retry);
    answer.append(row);
  });
}

/** Asks the last question again. */
function retry() {
  if (answering !== null) return;
  const questions = [...document.querySelectorAll(".message.user")];
  const last = questions.at(-1);
  if (!last) return;
  const text = last.textContent;
  while (last.nextElementSibling) last.nextElementSibling.remove();
  last.remove();
  // An answer that failed is not among the messages.
  if (messages.at(-1)?.role === "assistant" && messages.at(-2)?.content === text) messages = messages.slice(0, -2);
  element("prompt").value = "";
  send(text);
}

/** What the settings say, as fields of a request. */
function settings() {
  const number = (id) => (element(id).value === "" ? undefined : Number(element(id).value));
  const fields = {};
  for (const id of ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"]) {
    const value = number(id);
    if (value !== undefined) fields[id] = value;
  }
  return fields;
}

async function send(text) {
  if (answering !== null || text.trim() === "") return;
  const mine = messages;
  const asked = [...messages, { role: "user", content: text }];
  const system = element("system").value.trim();
  const body = {
    model: "default",
    messages: system ? [{ role: "system", content: system }, ...asked] : asked,
    stream: true,
    stream_options: { include_usage: true },
    ...settings(),
  };
  element("welcome").hidden = true;
  element("prompt").value = "";
  const question = show("user");
  question.textContent = text;
  const answer = new Answer(show("answer"));
  answering = new AbortController();
  busy(true);
  try {
    await receive(body, answer, answering.signal);
  } catch (error) {
    if (!answering.signal.aborted) {
      answer.fail(error.message);
      element("prompt").value ||= text;
    }
  }
  answer.end();
  // A new chat may have begun meanwhile.
  if (messages === mine && !answer.failed) {
    messages = [...asked, { role: "assistant", content: answer.text }];
    chats.keep(id, messages);
  }
  answering = null;
  actions();
  busy(false);
}

/** Takes the answer as it comes. */
async function receive(body, answer, signal) {
  const headers = { "content-type": "application/json" };
  const response = await call("v1/chat/completions", { method: "POST", headers, body: JSON.stringify(body), signal });
  if (!response.ok) throw new Error(await reason(response));
  for await (const { data } of events(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Error(chunk.error.message);
    const [choice] = chunk.choices;
    if (choice) answer.add(choice.delta, choice.finish_reason);
    if (chunk.usage) answer.used(chunk.usage, chunk.pagoda);
  }
  throw new Error("the connection was closed before the answer ended");
}

function busy(is) {
  element("send").hidden = is;
  element("stop").hidden = !is;
  if (!is) element("prompt").focus({ preventScroll: true });
}

function show(kind) {
  const shown = document.createElement("article");
  shown.className = `message ${kind}`;
  shown.setAttribute("aria-label", kind === "user" ? "You" : "Answer");
  const list = element("messages");
  list.append(shown);
  list.scrollTop = list.scrollHeight;
  return shown;
}

/** An answer that is being written. */
class Answer {
  text = "";
  failed = false;
  #thought = "";
  #thoughts = null;
  #drawn = false;
  #waiting = null;
  #clock = null;

  /** An answer in `shown`: one that is whole, or one that is to come. */
  constructor(shown, text = null) {
    this.shown = shown;
    this.body = document.createElement("div");
    this.body.className = "text";
    shown.append(this.body);
    if (text !== null) {
      this.text = text;
      this.#draw();
      return;
    }
    shown.classList.add("open");
    shown.setAttribute("aria-busy", "true");
    this.#waiting = this.#note("");
    this.#clock = setInterval(() => (this.#waiting.textContent = progress()), 250);
  }

  /** Takes away what was shown until the first token. */
  #begin() {
    clearInterval(this.#clock);
    this.#waiting?.remove();
    this.#waiting = null;
  }

  add({ content, reasoning_content: thought }, finish) {
    this.text += content ?? "";
    this.#thought += thought ?? "";
    if (this.text || this.#thought) this.#begin();
    if (finish === "length") this.cut = true;
    if (this.#drawn) return;
    this.#drawn = true;
    requestAnimationFrame(() => this.#draw());
  }

  #draw() {
    this.#drawn = false;
    const list = element("messages");
    const atEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 48;
    if (this.#thought && !this.#thoughts) this.#fold();
    if (this.#thoughts) this.#thoughts.textContent = this.#thought;
    this.body.replaceChildren(...rendered(this.text));
    this.shown.dataset.text = this.text;
    if (atEnd) list.scrollTop = list.scrollHeight;
  }

  /** A place for thoughts, folded. */
  #fold() {
    const folded = document.createElement("details");
    folded.className = "thoughts";
    const summary = document.createElement("summary");
    summary.textContent = "Thoughts";
    this.#thoughts = document.createElement("div");
    folded.append(summary, this.#thoughts);
    this.shown.prepend(folded);
  }

  used(usage, engine) {
    const { prompt_tokens: prompt, completion_tokens: generated, prompt_tokens_details: details } = usage;
    const parts = [`${prompt} prompt tokens, ${details.cached_tokens} cached`, `${generated} generated`];
    if (engine?.decode_ms > 0 && generated > 1) parts.push(`${((generated - 1) / (engine.decode_ms / 1000)).toFixed(1)} tokens/s`);
    if (engine?.prefill_ms != null) parts.push(`first token after ${time((engine.queue_ms ?? 0) + engine.prefill_ms)}`);
    if (engine?.sparse && engine.sparse.policy !== "full") {
      const of = engine.sparse.policy === "indexer" ? "tokens" : "blocks";
      parts.push(`read ${(engine.sparse.density * 100).toFixed(0)} % of the ${of}`);
    }
    this.#note(parts.join(" · "));
  }

  fail(message) {
    this.failed = true;
    this.#note(message).classList.add("error");
  }

  end() {
    this.#begin();
    this.#draw();
    if (this.cut) this.#note("The maximum number of tokens was reached.");
    if (!this.text && !this.failed) this.#note("No answer.");
    this.shown.classList.remove("open");
    this.shown.removeAttribute("aria-busy");
  }

  #note(text) {
    const note = document.createElement("p");
    note.className = "note";
    note.textContent = text;
    this.shown.append(note);
    const list = element("messages");
    list.scrollTop = list.scrollHeight;
    return note;
  }
}

function time(ms) {
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`;
}
