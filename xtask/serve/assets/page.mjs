// The page: a chat beside the engine that answers it.

import * as chat from "./chat.mjs";
import * as engine from "./engine.mjs";

// On narrow screens one of the two is shown.
const panes = [...document.querySelectorAll("[data-show]")];
for (const pane of panes) {
  pane.addEventListener("click", () => {
    document.body.dataset.pane = pane.dataset.show;
    for (const other of panes) other.setAttribute("aria-pressed", String(other === pane));
    engine.draw();
  });
}

chat.start();
engine.start();
