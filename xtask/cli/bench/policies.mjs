// Sparse policies as drawings: the JSON of `bench policies`, and of its report.

import { chart, figures, heat, html, legend, mean, note, number, points, table, unique } from "./draw.mjs";

/** Sparse policies on texts and needles: `policies.json`. */
export function policies({ setup, summaries, layers, ruler, lengths, cells }) {
  const lines = (all) => all.map(({ policy, values }) => [policy, ...values]);
  const density = (row) => (row.decode_density !== null && row.decode_density < 1 ? row.decode_density : row.prefill_density);
  const losses = summaries.rows
    .filter((row) => row.loss !== null && density(row) !== null)
    .map((row) => ({ name: row.policy, points: [{ x: density(row) * 100, y: row.loss * 100, title: row.policy }] }));
  return [
    note(`${setup}. Times are of decode steps of the text; selection and attention are device times by timestamps.`),
    figures(
      table(["policy", ...summaries.heads], lines(summaries.rows)),
      chart({
        title: "Loss against density",
        x: { title: "blocks attended in decode, or in prefill where decode is dense", unit: " %" },
        y: { title: "NLL against dense", unit: " %" },
        series: losses,
      }),
      timeByContext(cells),
      ruler.rows.length > 0 ? table(["policy", ...ruler.heads], lines(ruler.rows)) : undefined,
      lengths.rows.length > 0 ? table(["policy", ...lengths.heads], lines(lengths.rows)) : undefined,
      layers.length > 0
        ? table(
            ["policy", "density of decode by layer"],
            layers.map((of) => [of.policy, of.density.map((d) => d.toFixed(2)).join(" ")]),
          )
        : undefined,
      ...unique(cells.map((cell) => cell.policy)).map((policy) => passKeys(policy, cells)),
      ...cells.filter((cell) => cell.selected?.length > 0).map(selected),
    ),
  ];
}

/** Decode time against context length: the mean over needles and texts of equal length. Recall is measured on the host. */
function timeByContext(cells) {
  const timed = cells.filter((cell) => cell.kind !== "recall" && cell.decode.tokens > 0);
  const series = unique(timed.map((cell) => cell.policy)).map((name) => {
    const own = timed.filter((cell) => cell.policy === name);
    const lengths = [];
    for (const { tokens } of own) if (lengths.every((other) => Math.abs(other - tokens) >= 32)) lengths.push(tokens);
    const near = (length) => own.filter((cell) => Math.abs(cell.tokens - length) < 32).map((cell) => cell.decode.ms);
    return {
      name,
      join: "line",
      points: points(lengths.toSorted((a, b) => a - b).map((length) => [length, mean(near(length))])),
    };
  });
  return chart({
    title: "Time against context",
    x: { title: "tokens of context", log: true },
    y: { title: "ms a decode token" },
    series,
  });
}

/** Pass keys found, a row a depth and a column a length. */
function passKeys(policy, cells) {
  const own = cells.filter((cell) => cell.policy === policy && cell.kind === "pass-key");
  if (own.length === 0) return undefined;
  const sorted = (key) => unique(own.map((cell) => cell[key])).toSorted((a, b) => a - b);
  const [lengths, depths] = [sorted("tokens"), sorted("depth")];
  const found = (depth, tokens) =>
    mean(own.filter((cell) => cell.depth === depth && cell.tokens === tokens).map((cell) => cell.found));
  return heat({
    title: `${policy}: share of pass keys found`,
    x: { title: "tokens", labels: lengths.map(String) },
    y: { title: "depth", labels: depths.map(String) },
    values: depths.map((depth) => lengths.map((length) => found(depth, length))),
  });
}

/** Blocks that were selected: digits are ninths of the steps and KV heads. */
function selected(cell) {
  const values = cell.selected.map((layer) => [...layer].map((digit) => (digit === "-" ? NaN : Number(digit) / 9)));
  const columns = Math.max(...values.map((row) => row.length));
  // A column is one block, or several in long texts.
  const labels = Array.from({ length: columns }, (_, column) => String(Math.floor((column * cell.tokens) / columns)));
  const y = { title: "layer", labels: values.map((_, layer) => String(layer)) };
  return heat({
    title: `${cell.policy}: steps and KV heads that select a block, ${cell.task}`,
    x: { title: "about token", labels },
    y,
    values,
  });
}

/** What every policy loses and gains: the report's JSON, with a recommendation. */
export function report({ facts, lead, recommendations, heads, rows }) {
  const best = recommendations.find(({ limit }) => limit === lead)?.taken;
  const sentence = best
    ? [
        `For at most ${lead} loss take `,
        html("code", {}, best.spec),
        ": ",
        html("b", {}, `${best.speedup.toFixed(1)} times dense`),
        ` at ${number(best.tokens)} tokens.`,
      ]
    : [`For at most ${lead} loss stay with dense attention: no measured policy that keeps it is faster.`];
  const card = ({ limit, taken }) =>
    html(
      "div",
      { class: "card" },
      html("div", { class: "limit" }, `at most ${limit} loss`),
      html("div", { class: "times" }, taken ? `${taken.speedup.toFixed(2)} ×` : "dense"),
      taken ? html("code", {}, taken.spec) : undefined,
      html(
        "div",
        { class: "fine" },
        taken ? `${taken.says} at ${number(taken.tokens)} tokens` : "nothing that was measured is faster within this limit",
      ),
    );
  const lengths = unique(rows.map((row) => row.tokens)).toSorted((a, b) => a - b);
  const kinds = unique(rows.map((row) => row.kv_dtype));
  const families = unique(rows.map((row) => family(row.policy)));
  const terms = [
    `Times dense attention, for a request of that many prompt tokens and an answer of ${facts.answer}. A policy is within a`,
    `limit if its loss and one standard error of it are. --sparse auto:loss=${lead} takes it by itself.`,
  ].join(" ");
  return [
    html("p", { class: "lead" }, sentence),
    html("div", { class: "cards" }, recommendations.map(card)),
    note(terms),
    legend(families.map((name) => ({ name, form: 0 }))),
    legend(kinds.map((name, form) => ({ name: `KV ${name}`, form, color: 8 }))),
    figures(
      ...lengths.flatMap((tokens) =>
        frontier(
          tokens,
          rows.filter((row) => row.tokens === tokens),
          { families, kinds },
        ),
      ),
      kinds.length > 1 ? kvTypes(rows.filter((row) => row.tokens === lengths.at(-1) && row.policy === "full")) : undefined,
      ...lengths.flatMap((tokens) => [
        html("h3", { class: "wide" }, `All policies, ${number(tokens)} tokens`),
        ofLength(
          rows.filter((row) => row.tokens === tokens),
          heads,
        ),
      ]),
    ),
    ...circumstances(facts, kinds[0]),
  ];
}

/** Names of the parts of a policy without keys: each has a colour. */
const family = (policy) =>
  policy
    .split("+")
    .map((part) => part.split(":")[0])
    .join("+");

/** Loss against speed and against density, at one length. */
function frontier(tokens, rows, { families, kinds }) {
  const dots = (of, isBest) =>
    kinds.flatMap((kv, form) =>
      families.map((name, color) => ({
        name,
        form,
        color,
        faint: form > 0,
        points: rows
          .filter((row) => row.kv_dtype === kv && family(row.policy) === name && of(row) !== null)
          .map((row) => ({
            x: of(row),
            y: row.loss * 100,
            low: (row.loss - row.loss_error) * 100,
            high: (row.loss + row.loss_error) * 100,
            title: `${row.policy}, KV ${kv}: ${row.says}, ${number(of(row))}`,
            label: isBest && row.front ? row.index : undefined,
          })),
      })),
    );
  const y = { title: "loss, %", log: true, floor: 0.01 };
  const best = rows.filter((row) => row.front).map((row) => ({ x: row.request, y: row.loss * 100 }));
  const share = (row) => (row.density === null ? null : row.density * 100);
  return [
    chart({
      title: `Speed, ${number(tokens)} tokens`,
      x: { title: "speed of a request, times dense", close: true },
      y,
      series: dots((row) => row.request, true),
      best,
      named: false,
    }),
    chart({
      title: `Blocks read, ${number(tokens)} tokens`,
      x: { title: "density in the phase where a policy acts", unit: " %" },
      y,
      series: dots(share, false),
      named: false,
    }),
  ];
}

/** Memory, loss and speed of KV types with dense attention. */
function kvTypes(dense) {
  const heads = ["KV", "bytes", "bytes a token", "loss", "prefill, tok/s", "decode, tok/s"];
  const line = (row) => [
    row.kv_dtype,
    ...[row.kv_bytes, row.kv_bytes_a_token].map(number),
    row.says,
    ...[row.prefill_tok_s, row.decode_tok_s].map(number),
  ];
  const title = html("h3", { class: "wide" }, `Memory of the KV cache: dense attention, ${number(dense[0].tokens)} tokens`);
  return [title, table(heads, dense.map(line))];
}

const ofLength = (rows, heads) =>
  table(
    ["policy", ...heads],
    rows.map((row) => [`${row.index} ${row.policy}`, ...row.values]),
    rows.map((row) => row.front),
  );

/** The terms of the measurements, and everything that they depend on. */
function circumstances(facts, own) {
  const terms = [
    "Down and to the right is better where speed is drawn, down and to the left where density is. The dashed line joins what",
    "nothing beats in both loss and speed; its numbers are those of the tables.",
    `Loss: mean negative log likelihood of ${facts.scored} tokens behind the prompt, as decode steps, against dense attention`,
    `with KV ${own}, with its standard error over these tokens. Request, prefill and decode: speeds as multiples of dense`,
    `attention, of the prompt and an answer of ${facts.answer} tokens, one at a time, the faster one of two. Density: attended`,
    "share of the KV blocks. Tasks: share of the expected answers that were found; to finish: tokens of an answer that the",
    "model ended, mean. KV memory: blocks of prompt and scored tokens.",
  ].join(" ");
  const { model, fingerprint, device: adapter, driver, text, tasks, date, program, command } = facts;
  const list = {
    model: `${model}, fingerprint ${fingerprint}`,
    device: adapter,
    driver,
    text,
    tasks: tasks.join(", ") || "none",
    date,
    program,
    command,
  };
  const entries = Object.entries(list).flatMap(([name, value]) => [html("dt", {}, name), html("dd", {}, value)]);
  return [html("h3", {}, "How it was measured"), html("p", {}, terms), html("dl", {}, entries)];
}
