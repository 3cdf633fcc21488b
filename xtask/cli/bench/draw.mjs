// Drawings for the page of `bench`: charts over two axes, bars, heat maps and tables, as elements that take their colours from
// the style sheet. Nothing here knows a suite.

/** Colours of series in the style sheet, and forms of marks: where colours run out, the next series have another form. */
const COLORS = 10;

/** Units of a chart, which is scaled to its column, and the room for labels in it. */
const WIDTH = 480;
const HEIGHT = 340;
const MARGIN = { left: 72, right: 24, above: 14, below: 46 };

/** An element of HTML; children that are no elements are text. */
export function html(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** An element of SVG. */
export function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) if (value !== undefined) element.setAttribute(name, value);
  element.append(...children.flat(Infinity).filter((child) => child !== undefined && child !== null));
  return element;
}

export const figures = (...parts) => html("div", { class: "figures" }, parts);
export const note = (text) => html("p", { class: "soft" }, text);
export const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
export const unique = (values) => [...new Set(values)];
export const points = (pairs) => pairs.map(([x, y]) => ({ x, y }));

/** The smallest number of the form 1, 2 or 5 times a power of ten that is at least `value`. */
function roundAbove(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].find((times) => times * power >= value * (1 - 1e-9)) * power;
}

const roundBelow = (value) => 1 / roundAbove(1 / value);

/** Whether an axis can show a value. */
export const holds = (axis, value) => Number.isFinite(value) && (!axis.log || axis.floor !== undefined || value > 0);

/**
 * An axis for values: it ends on round numbers, and has zero where they are not far from it, unless it is `close`. With `log` it
 * is logarithmic; what is below `floor` is drawn there then.
 */
export function scaled(axis, values) {
  const seen = values.filter((value) => holds(axis, value)).map((value) => Math.max(value, axis.floor ?? -Infinity));
  let [low, high] = [Math.min(...seen), Math.max(...seen)];
  if (axis.log) {
    if (seen.length === 0) [low, high] = [1, 10];
    low = axis.floor ?? roundBelow(low);
    high = roundAbove(high > low ? high : low * 1.01);
    const part = (value) => Math.log(Math.max(value, low) / low) / Math.log(high / low);
    return { low, high, part, ticks: logTicks(low, high), label: (value) => short(value, value, value) };
  }
  if (seen.length === 0) [low, high] = [0, 1];
  if (!axis.close && low >= 0 && low < 0.7 * high) low = 0;
  const size = Math.max(Math.abs(low), Math.abs(high));
  // Values that agree to twelve digits are one value here, so that ticks differ.
  const step = roundAbove(((high - low > 1e-12 * size ? high - low : Math.max(size, 1)) / 5) * 0.999);
  low = Math.floor(low / step) * step;
  high = Math.max(Math.ceil(high / step) * step, low + step);
  const ticks = Array.from({ length: Math.min(40, Math.round((high - low) / step) + 1) }, (_, at) => low + at * step);
  const most = Math.max(Math.abs(low), Math.abs(high));
  const label = (value) => (Math.abs(value) < step / 2 ? "0" : short(value, step, most));
  return { low, high, part: (value) => (value - low) / (high - low), ticks, label };
}

/** Round numbers from end to end: of each decade some if there are few decades, else powers of ten. */
function logTicks(low, high) {
  const ticks = [];
  if (high / low < 2e3) {
    for (let at = roundAbove(low); at <= high * (1 + 1e-9); at = roundAbove(at * 1.01)) ticks.push(at);
    return ticks;
  }
  const first = Math.ceil(Math.log10(low) - 1e-9);
  const last = Math.floor(Math.log10(high) + 1e-9);
  const every = Math.max(1, Math.ceil((last - first) / 12));
  for (let power = first; power <= last; power += every) ticks.push(10 ** power);
  return ticks;
}

/** A number with a prefix by the size of `most`, and as many digits as tell it from one that is `step` away. */
function short(value, step, most) {
  const prefixes = [
    [1e15, 1e15, "P"],
    [1e12, 1e12, "T"],
    [1e9, 1e9, "G"],
    [1e6, 1e6, "M"],
    [1e4, 1e3, "k"],
  ];
  const [, scale, prefix] = prefixes.find(([from]) => most >= from * (1 - 1e-9)) ?? [0, 1, ""];
  let digits = 0;
  while (digits < 12 && (step / scale) * 10 ** digits < 0.999) digits += 1;
  return (value / scale).toFixed(digits) + prefix;
}

/** A number for people: four digits, commas between thousands. */
export function number(value) {
  if (value === undefined || value === null) return "-";
  if (typeof value !== "number") return String(value);
  const size = Math.abs(value);
  const digits = size === 0 || size >= 1000 ? 0 : Math.min(6, Math.max(0, 3 - Math.floor(Math.log10(size))));
  return value.toLocaleString("en-US", { maximumFractionDigits: digits });
}

/** A share as per cent. */
export const percent = (share, digits = 1) =>
  share === undefined || share === null ? "-" : `${(share * 100).toFixed(digits)} %`;

function mark(form, x, y) {
  if (form === 0) return svg("circle", { class: "mark", cx: x, cy: y, r: 5 });
  const paths = [`M${x - 4.5} ${y - 4.5}h9v9h-9z`, `M${x} ${y - 6}l5.5 9.5h-11z`, `M${x} ${y - 6}l6 6l-6 6l-6-6z`];
  return svg("path", { class: "open", d: paths[(form - 1) % 3] });
}

const colorOf = (series, at) => (series.color ?? at) % COLORS;
const formOf = (series, at) => series.form ?? Math.min(3, Math.floor(at / COLORS));

/** Names of series beside their colours and marks. */
export function legend(series) {
  const one = (entry, at) =>
    html(
      "span",
      {},
      svg("svg", { class: `s${colorOf(entry, at)}`, viewBox: "0 0 14 14" }, mark(formOf(entry, at), 7, 7)),
      entry.name,
    );
  return html("div", { class: "legend" }, series.map(one));
}

function figure(title, ...parts) {
  return html("figure", {}, html("figcaption", {}, title), ...parts);
}

/**
 * A chart. `x` and `y` are axes: `{ title, log, close, floor, unit }`. Each of `series` has a name and points `{ x, y, low, high,
 * title, label }`, which are marked, and joined by a "line" or by "steps" if `join` says so. `best` are points that a stair goes
 * through.
 */
export function chart({ title, x, y, series, best = [], named = true }) {
  const shown = series.map((entry) => ({
    ...entry,
    points: entry.points.filter((point) => holds(x, point.x) && holds(y, point.y)),
  }));
  const all = shown.flatMap((entry) => entry.points);
  const over = scaled(
    x,
    all.map((point) => point.x),
  );
  const up = scaled(
    y,
    all.flatMap((point) => [point.y, point.low ?? point.y, point.high ?? point.y]),
  );
  const { left, right, above, below } = MARGIN;
  const place = {
    x: (value) => left + over.part(value) * (WIDTH - left - right),
    y: (value) => HEIGHT - below - up.part(value) * (HEIGHT - above - below),
  };
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": title });
  picture.append(...grid({ x, y, over, up, place }));
  if (best.length > 1) {
    const [first, ...rest] = best.toSorted((a, b) => a.x - b.x);
    const stair = rest.map((point) => `V${place.y(point.y)}H${place.x(point.x)}`).join("");
    picture.append(svg("path", { class: "best", d: `M${place.x(first.x)} ${place.y(first.y)}${stair}` }));
  }
  picture.append(...shown.map((entry, at) => drawn(entry, at, place)), ...labels(all, place));
  return figure(title, picture, named && series.length > 1 ? legend(series) : undefined);
}

function grid({ x, y, over, up, place }) {
  const { left, right, above, below } = MARGIN;
  const bottom = HEIGHT - below;
  const lines = over.ticks.flatMap((tick) => [
    svg("path", { class: "grid", d: `M${place.x(tick)} ${above}V${bottom}` }),
    svg("text", { x: place.x(tick), y: bottom + 17, "text-anchor": "middle" }, over.label(tick) + (x.unit ?? "")),
  ]);
  const floor = (tick) => (y.floor !== undefined && tick === up.low ? "≤ " : "");
  const columns = up.ticks.flatMap((tick) => [
    svg("path", { class: "grid", d: `M${left} ${place.y(tick)}H${WIDTH - right}` }),
    svg("text", { x: left - 7, y: place.y(tick) + 4, "text-anchor": "end" }, floor(tick) + up.label(tick) + (y.unit ?? "")),
  ]);
  const middle = (above + bottom) / 2;
  const titles = [
    svg("text", { x: (left + WIDTH - right) / 2, y: HEIGHT - 8, "text-anchor": "middle" }, x.title),
    svg("text", { transform: `translate(12 ${middle}) rotate(-90)`, "text-anchor": "middle" }, y.title),
  ];
  return [...lines, ...columns, ...titles];
}

function drawn(series, at, place) {
  const corner = (point, before) => {
    if (!before) return `M${place.x(point.x)} ${place.y(point.y)}`;
    return series.join === "steps" ? `H${place.x(point.x)}V${place.y(point.y)}` : `L${place.x(point.x)} ${place.y(point.y)}`;
  };
  const line = series.points.map((point, index) => corner(point, index)).join("");
  const marked = (point) =>
    svg(
      "g",
      { class: series.faint ? "faint" : undefined },
      svg("title", {}, point.title ?? `${series.name}: ${number(point.x)}, ${number(point.y)}`),
      point.low === undefined
        ? undefined
        : svg("path", { class: "error", d: `M${place.x(point.x)} ${place.y(point.low)}V${place.y(point.high)}` }),
      mark(formOf(series, at), place.x(point.x), place.y(point.y)),
    );
  return svg(
    "g",
    { class: `s${colorOf(series, at)}` },
    series.join && line ? svg("path", { class: "line", d: line }) : undefined,
    series.join === "steps" ? undefined : series.points.map(marked),
  );
}

/** Numbers beside points, those that would lie on one another moved apart. */
function labels(points, place) {
  const placed = [];
  const free = ({ x, y }) =>
    x < WIDTH - 10 && y > 12 && placed.every((other) => Math.abs(other.x - x) > 17 || Math.abs(other.y - y) > 12);
  return points
    .filter((point) => point.label !== undefined)
    .map((point) => {
      const places = [
        [9, -7],
        [9, 15],
        [-9, -7],
        [-9, 15],
        [0, -13],
        [0, 22],
      ];
      const at = ([right, down]) => ({ x: place.x(point.x) + right, y: place.y(point.y) + down, right });
      const { x, y, right } = places.map(at).find(free) ?? at(places[0]);
      placed.push({ x, y });
      const anchor = ["end", "middle", "start"][Math.sign(right) + 1];
      return svg("text", { class: "number", x, y, "text-anchor": anchor }, String(point.label));
    });
}

/** Bars, one a row, of one part or of several: `rows` are `{ name, parts: [values], note }`, `names` are those of the parts. */
export function bars({ title, unit, names = [], rows }) {
  const sum = (row) => row.parts.reduce((total, part) => total + (part ?? 0), 0);
  const most = Math.max(...rows.map(sum), Number.MIN_VALUE);
  const line = (row) => [
    html("span", { class: "name" }, row.name),
    html(
      "span",
      { class: "track" },
      row.parts.map((part, at) =>
        html("i", {
          class: `s${(row.color ?? at) % COLORS}`,
          style: `width:${((part ?? 0) / most) * 100}%`,
          title: `${names[at] ?? row.name}: ${number(part)} ${unit}`,
        }),
      ),
    ),
    html("span", { class: "value" }, `${number(sum(row))} ${unit}${row.note ? `, ${row.note}` : ""}`),
  ];
  const legends = names.length > 1 ? legend(names.map((name) => ({ name, form: 0 }))) : undefined;
  return html(
    "figure",
    { class: "wide" },
    html("figcaption", {}, `${title}, ${unit}`),
    legends,
    html("div", { class: "bars" }, rows.map(line)),
  );
}

/** Cells from light (0) to dark (1); `x` and `y` are `{ title, labels }`, and `values` has a row for each label of `y`. */
export function heat({ title, x, y, values }) {
  const { left, above } = MARGIN;
  const wide = (WIDTH - left - MARGIN.right) / Math.max(1, x.labels.length);
  const tall = Math.min(26, Math.max(6, 240 / Math.max(1, y.labels.length)));
  const bottom = above + tall * y.labels.length;
  const cells = values.flatMap((row, down) =>
    row.map((value, at) => {
      const known = Number.isFinite(value);
      const style = known ? `fill-opacity:${Math.min(1, Math.max(0, value)) * 0.94 + 0.06}` : undefined;
      const said = svg(
        "title",
        {},
        `${y.title} ${y.labels[down]}, ${x.title} ${x.labels[at]}: ${known ? number(value) : "none"}`,
      );
      const corner = { x: left + at * wide, y: above + down * tall, width: wide, height: tall };
      return svg("rect", { class: known ? "cell" : "cell none", style, ...corner }, said);
    }),
  );
  const some = (texts, size, room) => {
    const every = Math.max(1, Math.ceil(room / size));
    return texts.map((text, at) => [text, at]).filter(([, at]) => at % every === 0);
  };
  const below = some(x.labels, wide, 42).map(([text, at]) =>
    svg("text", { x: left + (at + 0.5) * wide, y: bottom + 17, "text-anchor": "middle" }, text),
  );
  const beside = some(y.labels, tall, 13).map(([text, at]) =>
    svg("text", { x: left - 7, y: above + (at + 0.5) * tall + 4, "text-anchor": "end" }, text),
  );
  const titles = [
    svg("text", { x: (left + WIDTH - MARGIN.right) / 2, y: bottom + 36, "text-anchor": "middle" }, x.title),
    svg("text", { transform: `translate(12 ${(above + bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, y.title),
  ];
  const size = { viewBox: `0 0 ${WIDTH} ${bottom + 42}`, role: "img", "aria-label": title };
  return figure(title, svg("svg", size, cells, below, beside, titles));
}

/** A table whose cells know their heads, which narrow screens write beside them; lines of `strong` stand out. */
export function table(heads, lines, strong = []) {
  const row = (cells, at) =>
    html(
      "tr",
      { class: strong[at] ? "front" : undefined },
      cells.map((cell, column) =>
        html("td", { "data-head": heads[column] }, column === 0 ? html("code", {}, String(cell)) : String(cell)),
      ),
    );
  const top = html(
    "thead",
    {},
    html(
      "tr",
      {},
      heads.map((head) => html("th", {}, head)),
    ),
  );
  return html("div", { class: "wide" }, html("table", {}, top, html("tbody", {}, lines.map(row))));
}
