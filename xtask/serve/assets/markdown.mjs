// Markdown as nodes. Written here because libraries make HTML, which this page never parses: what a model writes stays text.

/** The nodes of a text. */
export function rendered(text) {
  const nodes = [];
  text.split(/^```/m).forEach((part, at) => {
    if (at % 2 === 0) nodes.push(...blocks(part));
    else nodes.push(code(part));
  });
  return nodes;
}

/** A fenced block, whose first line names its language. */
function code(part) {
  const block = make("pre");
  block.textContent = part.replace(/^[^\n]*\n?/, "").replace(/\n$/, "");
  const copy = make("button", "Copy");
  copy.type = "button";
  copy.className = "quiet copy";
  copy.addEventListener("click", () => copied(copy, block.textContent));
  const around = make("div");
  around.className = "code";
  around.append(copy, block);
  return around;
}

/** Copies a text, and says so on the button. */
export async function copied(button, text) {
  const name = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed";
  }
  setTimeout(() => (button.textContent = name), 1500);
}

const ITEM = /^\s*(?:[-*+]|(\d+)[.)])\s+(.*)$/;

/** Headings, lists, quotes and paragraphs. */
function blocks(text) {
  const nodes = [];
  let open = null;
  for (const line of text.split("\n")) {
    const heading = /^(#{1,6})\s+(.*)$/.exec(line);
    const item = ITEM.exec(line);
    const quote = /^>\s?(.*)$/.exec(line);
    if (line.trim() === "") {
      open = null;
    } else if (heading) {
      nodes.push(make(`h${Math.min(heading[1].length + 3, 6)}`, heading[2]));
      open = null;
    } else if (item) {
      const kind = item[1] === undefined ? "ul" : "ol";
      if (open?.localName !== kind) {
        open = make(kind);
        if (kind === "ol") open.start = Number(item[1]);
        nodes.push(open);
      }
      open.append(make("li", item[2]));
    } else {
      const kind = quote ? "blockquote" : "p";
      const words = quote ? quote[1] : line;
      if (open?.localName === kind) open.append("\n", ...inline(words));
      else if (!quote && (open?.localName === "ul" || open?.localName === "ol")) open.lastChild.append("\n", ...inline(words.trim()));
      else nodes.push((open = make(kind, words)));
    }
  }
  return nodes;
}

const INLINE = /(`[^`\n]+`|\*\*[^*\n]+\*\*|\*[^*\s][^*\n]*\*|\[[^\]\n]+\]\(https?:\/\/[^\s)]+\))/;

/** Code, strong and stressed words, and links; all else as it is. */
function inline(text) {
  return text.split(INLINE).map((part) => {
    const link = /^\[([^\]]+)\]\((https?:[^)]+)\)$/.exec(part);
    if (link) {
      const node = make("a", link[1]);
      node.href = link[2];
      node.target = "_blank";
      node.rel = "noopener noreferrer";
      return node;
    }
    const [tag, cut] = part.startsWith("`") ? ["code", 1] : part.startsWith("**") ? ["b", 2] : part.startsWith("*") ? ["em", 1] : [null, 0];
    if (tag === null || part.length <= 2 * cut || !INLINE.test(part)) return document.createTextNode(part);
    const node = document.createElement(tag);
    node.textContent = part.slice(cut, -cut);
    return node;
  });
}

function make(tag, text = "") {
  const node = document.createElement(tag);
  if (text) node.append(...(tag === "button" ? [text] : inline(text)));
  return node;
}
