import assert from "node:assert/strict";
import test from "node:test";

// The few parts of a document that the module uses.
class Node {
  constructor(localName) {
    this.localName = localName;
    this.children = [];
  }
  append(...nodes) {
    this.children.push(...nodes);
  }
  get lastChild() {
    return this.children.at(-1);
  }
  set textContent(text) {
    this.children = [text];
  }
  addEventListener() {}
}

globalThis.document = { createElement: (tag) => new Node(tag), createTextNode: (text) => text };

const { rendered } = await import("../../assets/markdown.mjs");

const told = (node) => {
  if (typeof node === "string") return node;
  const href = node.href ? ` ${node.href}` : "";
  return `<${node.localName}${href}>${node.children.map(told).join("")}</${node.localName}>`;
};
const html = (text) => rendered(text).map(told).join("");

test("blocks and words become nodes", () => {
  assert.equal(html("# A `b`\n\ntext **bold** and *it*\nmore"), "<h4>A <code>b</code></h4><p>text <b>bold</b> and <em>it</em>\nmore</p>");
  assert.equal(html("- a\n- b\n  more\n\n3. c"), "<ul><li>a</li><li>b\nmore</li></ul><ol><li>c</li></ol>");
  assert.equal(html("> said\n> twice"), "<blockquote>said\ntwice</blockquote>");
  assert.equal(html("```js\nlet x = '<b>';\n```\nend"), "<div><button>Copy</button><pre>let x = '<b>';</pre></div><p>end</p>");
});

test("what is no Markdown stays text", () => {
  assert.equal(html("<script>alert(1)</script> 2 * 3 * 4 `"), "<p><script>alert(1)</script> 2 * 3 * 4 `</p>");
  assert.equal(html("[a](javascript:alert(1)) [b](https://x.example/c)"), "<p>[a](javascript:alert(1)) <a https://x.example/c>b</a></p>");
  assert.equal(html("```\nopen"), "<div><button>Copy</button><pre>open</pre></div>");
});
