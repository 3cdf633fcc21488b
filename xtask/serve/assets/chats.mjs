// The chats that this browser keeps.

const STORED = "pagoda-chats";
const OPEN = "pagoda-chat";
const MAX_CHATS = 50;

/** All chats, the newest first: `{ id, title, messages }`. */
export function all() {
  try {
    return JSON.parse(localStorage.getItem(STORED)) ?? [];
  } catch {
    return [];
  }
}

/** The chat that this tab had open. */
export function current() {
  const id = sessionStorage.getItem(OPEN);
  return all().find((chat) => chat.id === id) ?? null;
}

/** Keeps a chat as the newest; older ones go if there is no room. */
export function keep(id, messages) {
  sessionStorage.setItem(OPEN, id);
  const first = messages.find((message) => message.role === "user")?.content ?? "";
  const chat = { id, title: first.slice(0, 60), messages };
  let chats = [chat, ...all().filter((other) => other.id !== id)].slice(0, MAX_CHATS);
  while (chats.length > 0) {
    try {
      localStorage.setItem(STORED, JSON.stringify(chats));
      return;
    } catch {
      chats = chats.slice(0, -1);
    }
  }
}

export function open(id) {
  sessionStorage.setItem(OPEN, id);
}

export function close() {
  sessionStorage.removeItem(OPEN);
}

export function forget(id) {
  localStorage.setItem(STORED, JSON.stringify(all().filter((chat) => chat.id !== id)));
}
