// Calls of the server, with its API key where it asks for one.

const STORED = "pagoda-key";
let asking = null;

/** Like `fetch`, with the key. Asks for it if the server does. */
export async function call(path, options = {}) {
  for (;;) {
    const key = sessionStorage.getItem(STORED);
    const headers = { ...options.headers };
    if (key) headers.authorization = `Bearer ${key}`;
    const response = await fetch(path, { ...options, headers });
    if (response.status !== 401) return response;
    // Somebody else may have entered another key meanwhile.
    if (sessionStorage.getItem(STORED) === key) await ask(key !== null);
  }
}

/** Asks for a key, once for all who wait for it. */
function ask(wrong) {
  asking ??= new Promise((resolve) => {
    const dialog = document.getElementById("key-dialog");
    const input = document.getElementById("key");
    document.getElementById("key-error").hidden = !wrong;
    const entered = () => {
      if (!input.value) {
        dialog.showModal();
        return;
      }
      dialog.removeEventListener("close", entered);
      sessionStorage.setItem(STORED, input.value);
      input.value = "";
      asking = null;
      resolve();
    };
    dialog.addEventListener("close", entered);
    dialog.showModal();
  });
  return asking;
}

/** The message of an error in the server's form, or what there is instead. */
export async function reason(response) {
  const text = await response.text();
  try {
    return JSON.parse(text).error.message;
  } catch {
    return text || `${response.status} ${response.statusText}`;
  }
}
