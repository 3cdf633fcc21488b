// Drawings on canvases, in the colours of the style sheet.

import { WINDOW_S, hue, phases } from "./history.mjs";

let colours = null;
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => (colours = null));

function colour(name) {
  colours ??= getComputedStyle(document.documentElement);
  return colours.getPropertyValue(`--${name}`).trim();
}

/** The colour of a request. */
export function colourOf(seq) {
  return `hsl(${hue(seq)} 60% ${colour("held-light")})`;
}

/** A context of a canvas in CSS pixels, cleared; `height` is set where it depends on the contents. */
function context(canvas, height) {
  if (height) canvas.style.height = `${height}px`;
  const scale = devicePixelRatio || 1;
  const [width, tall] = [canvas.clientWidth, canvas.clientHeight];
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(tall * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(tall * scale);
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, width, tall);
  return { pen, width, height: tall };
}

/** A line of values, the last one at the right edge. */
export function spark(canvas, values, most) {
  const { pen, width, height } = context(canvas);
  const top = Math.max(1, ...values);
  const x = (at) => width - ((values.length - 1 - at) / (most - 1)) * width;
  const y = (value) => height - 1.5 - (value / top) * (height - 4);
  pen.beginPath();
  values.forEach((value, at) => pen.lineTo(x(at), y(value)));
  pen.strokeStyle = colour("accent");
  pen.lineWidth = 1.5;
  pen.lineJoin = "round";
  pen.stroke();
  if (values.length === 0) return;
  pen.lineTo(width, height);
  pen.lineTo(x(0), height);
  pen.globalAlpha = 0.12;
  pen.fillStyle = colour("accent");
  pen.fill();
  pen.globalAlpha = 1;
}

/** The phases of a request on the timeline. */
export function row(canvas, request, now) {
  const { pen, width, height } = context(canvas);
  const x = (time) => Math.max(0, Math.min(1, (time - now + WINDOW_S) / WINDOW_S)) * width;
  const own = colourOf(request.seq);
  pen.fillStyle = colour("line");
  pen.fillRect(0, height / 2 - 0.5, width, 1);
  for (const { activity, begin, end } of phases(request, now)) {
    const [left, right] = [x(begin), x(end)];
    const wide = Math.max(right - left, 2);
    if (right <= 0) continue;
    const bar = (name, thick) => {
      pen.fillStyle = name;
      pen.fillRect(left, (height - thick) / 2, wide, thick);
    };
    if (activity === "decode") bar(own, height - 4);
    if (activity === "waiting") bar(colour("cached"), 4);
    if (activity === "prefill") hatch(pen, { left, top: 2, wide, tall: height - 4 }, own);
    if (activity === "preempted" || activity === "loading") {
      pen.clearRect(left, 0, wide, height);
      bar(colour(activity === "loading" ? "busy" : "danger"), 4);
    }
  }
}

function hatch(pen, { left, top, wide, tall }, own) {
  pen.save();
  pen.beginPath();
  pen.rect(left, top, wide, tall);
  pen.clip();
  pen.fillStyle = own;
  pen.globalAlpha = 0.35;
  pen.fillRect(left, top, wide, tall);
  pen.globalAlpha = 1;
  pen.strokeStyle = own;
  pen.lineWidth = 2;
  pen.beginPath();
  // Lines keep their places as time goes by.
  for (let at = Math.floor((left - tall) / 5) * 5; at < left + wide; at += 5) {
    pen.moveTo(at, top + tall);
    pen.lineTo(at + tall, top);
  }
  pen.stroke();
  pen.restore();
}

/** Space between the blocks on the device and those in host memory. */
const HOST_GAP = 22;

/** All cells of a map, one by one, as `{ kind, seq }`. */
export function cellsOf(map) {
  return map.runs.flatMap(([cells, kind, seq]) => Array.from({ length: cells }, () => ({ kind, seq })));
}

/** The map of the pool. Returns which cell is at a place. */
export function blockMap(canvas, map, chosen) {
  const cells = cellsOf(map);
  const hosted = cells.length - map.device_cells;
  const width = canvas.clientWidth;
  const perRow = (size) => Math.max(1, Math.floor(width / size));
  const rows = (size) => Math.ceil(map.device_cells / perRow(size)) + Math.ceil(hosted / perRow(size));
  let size = 16;
  while (size > 5 && rows(size) * size > 210) size -= 1;
  const across = perRow(size);
  // Rows end where the card does.
  if (across > 20) size = width / across;
  const split = Math.ceil(map.device_cells / across) * size + (hosted > 0 ? HOST_GAP : 0);
  const { pen } = context(canvas, Math.max(size, split + Math.ceil(hosted / across) * size));
  const holds = chosen !== null && cells.some((cell) => cell.seq === chosen);
  const fill = { shared: colour("shared"), cached: colour("cached"), free: colour("free") };
  cells.forEach(({ kind, seq }, at) => {
    const index = at < map.device_cells ? at : at - map.device_cells;
    const top = Math.floor(index / across) * size + (at < map.device_cells ? 0 : split);
    pen.globalAlpha = holds && kind === "held" && seq !== chosen ? 0.35 : 1;
    pen.fillStyle = kind === "held" ? colourOf(seq) : fill[kind];
    pen.fillRect((index % across) * size, top, size - 1.5, size - 1.5);
  });
  pen.globalAlpha = 1;
  if (hosted > 0) {
    pen.fillStyle = colour("soft");
    pen.font = "12px system-ui, sans-serif";
    pen.fillText("in host memory", 0, split - 7);
  }
  return (x, y) => {
    const host = hosted > 0 && y >= split;
    const column = Math.floor(x / size);
    const index = Math.floor((host ? y - split : y) / size) * across + column;
    const at = host ? index + map.device_cells : index;
    const there = column < across && at < cells.length && (host || index < map.device_cells);
    return there ? { at, ...cells[at] } : null;
  };
}

/** Room for the names of layers. */
const LEFT = 58;

/** Blocks that a request read, by layer. Returns which layer and column is at a place. */
export function reads(canvas, { layers, columns, tokens }) {
  const tall = Math.max(4, Math.min(14, Math.floor(240 / layers.length)));
  const { pen, width } = context(canvas, layers.length * tall + 20);
  const wide = (width - LEFT) / columns;
  layers.forEach(({ read }, line) => {
    for (let column = 0; column < columns; column += 1) {
      const digit = read[column];
      pen.globalAlpha = digit === "-" ? 0.25 : 1;
      pen.fillStyle = colour("free");
      const place = [LEFT + column * wide, line * tall, Math.max(wide - (wide > 4 ? 1 : 0), 0.5), tall - (tall > 5 ? 1 : 0)];
      pen.fillRect(...place);
      if (digit === "0" || digit === "-") continue;
      pen.globalAlpha = 0.15 + (0.85 * Number(digit)) / 9;
      pen.fillStyle = colour("accent");
      pen.fillRect(...place);
    }
  });
  pen.globalAlpha = 1;
  pen.fillStyle = colour("soft");
  pen.font = "12px system-ui, sans-serif";
  const bottom = layers.length * tall;
  pen.fillText(`layer ${layers[0].layer}`, 0, Math.min(tall, 11));
  if (layers.length > 2) pen.fillText(`layer ${layers.at(-1).layer}`, 0, bottom - 1);
  pen.fillText("token 0", LEFT, bottom + 15);
  const end = `token ${tokens.toLocaleString("en")}`;
  pen.fillText(end, width - pen.measureText(end).width, bottom + 15);
  return (x, y) => {
    const [column, line] = [Math.floor((x - LEFT) / wide), Math.floor(y / tall)];
    return column >= 0 && column < columns && line < layers.length ? { column, ...layers[line] } : null;
  };
}
