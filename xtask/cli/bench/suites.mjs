// Results of the suites of `bench` as drawings. A suite is a function from the JSON that it wrote to elements of the page.

import { bars, chart, figures, heat, holds, html, note, number, percent, points, table, unique } from "./draw.mjs";
import { policies, report } from "./policies.mjs";

const PERCENTILES = ["p50", "p90", "p99"];

/** Complete requests: rows of `e2e.json`. */
function e2e(rows) {
  const name = (row) => `${row.configuration} ${row.streams}x${row.prompt}+${row.output}`;
  const times = (row, phase) => {
    const shares = [
      ["resident", row.of_resident],
      ["dense", row.of_dense],
    ].filter(([, speed]) => speed);
    return shares.map(([than, speed]) => `${speed[phase].toFixed(2)} of ${than}`).join(", ");
  };
  const speed = (phase) =>
    bars({
      title: phase === "decode" ? "Decode, all streams" : "Prefill, all streams",
      unit: "tok/s",
      rows: rows.map((row) => ({ name: name(row), parts: [row[`${phase}_tok_s`]], note: times(row, phase) })),
    });
  const lines = rows.map((row) => [
    name(row),
    number(row.prefill_tok_s),
    number(row.decode_tok_s),
    number(row.step_ms),
    percent(row.roofline.of_step),
    percent(row.ahead),
    percent(row.density),
    row.pages ? percent(row.pages.missed) : "-",
    row.pages ? percent(row.pages.ahead) : "-",
    row.bytes === undefined ? "-" : number(row.bytes / 1e6),
    percent(row.hidden),
  ]);
  const heads = ["row", "prefill, tok/s", "decode, tok/s", "step, ms", "of the least time", "encoded ahead", "blocks attended"];
  heads.push("pages waited for", "pages fetched ahead", "from the host, MB a step", "transfer hidden");
  return [note(device(rows[0])), figures(speed("decode"), speed("prefill"), kernelTimes(rows, name), table(heads, lines))];
}

const device = ({ adapter, driver, level }) =>
  [adapter, driver && `driver ${driver}`, level && `level ${level}`].filter(Boolean).join(", ");

/** Device time of a decode step, the longest kernels apart. */
function kernelTimes(rows, name) {
  const timed = rows.filter((row) => row.kernels.decode.length > 0);
  if (timed.length === 0) return undefined;
  const sums = new Map();
  for (const { kernel, us } of timed.flatMap((row) => row.kernels.decode)) sums.set(kernel, (sums.get(kernel) ?? 0) + us);
  const top = [...sums]
    .toSorted((a, b) => b[1] - a[1])
    .slice(0, 8)
    .map(([kernel]) => kernel);
  const parts = ({ kernels: { decode } }) => {
    const of = (kernel) => decode.find((time) => time.kernel === kernel)?.us ?? 0;
    const rest = decode.filter((time) => !top.includes(time.kernel)).reduce((sum, time) => sum + time.us, 0);
    return [...top.map(of), rest];
  };
  return bars({
    title: "Kernels of a decode step",
    unit: "µs",
    names: [...top, "all others"],
    rows: timed.map((row) => ({ name: name(row), parts: parts(row) })),
  });
}

/** A replayed trace of arrivals: `trace-NAME.json`. */
function trace(replay) {
  const over = (name, of) => ({ name, join: "steps", points: replay.usage.map((at) => ({ x: at.at_s, y: of(at) })) });
  const seconds = { title: "seconds" };
  const blocks = [over("blocks in use", (at) => at.blocks), over("blocks of the pool", () => replay.pool_blocks)];
  const requests = [over("running", (at) => at.running), over("waiting", (at) => at.waiting)];
  return [
    note(
      `${device(replay)}: ${replay.requests} requests, ${number(replay.output_tok_s)} output tok/s, ${replay.preemptions} preemptions`,
    ),
    figures(
      chart({ title: "KV blocks", x: seconds, y: { title: "blocks" }, series: blocks }),
      chart({ title: "Requests", x: seconds, y: { title: "requests" }, series: requests }),
      ...latencies([replay], () => replay.workload),
    ),
  ];
}

/** Percentiles of the latencies of loads. */
function latencies(rows, name) {
  const kinds = [
    ["First token", "ttft_ms"],
    ["Between tokens", "inter_token_ms"],
    ["Whole answer", "latency_ms"],
  ];
  return kinds.map(([title, key]) =>
    bars({
      title,
      unit: "ms",
      rows: rows.flatMap((row) => PERCENTILES.map((p, color) => ({ name: `${name(row)}, ${p}`, color, parts: [row[key][p]] }))),
    }),
  );
}

/** Kernels alone: `kernels.json`. */
function kernels(report) {
  const { ceiling } = report;
  const ran = report.rows.filter((row) => row.us !== null);
  const computing = ran.filter((row) => row.operations > 0 && row.bytes > 0);
  const named = (row) => `${row.kernel}, ${row.level}`;
  const series = unique(computing.map(named)).map((name) => ({
    name,
    points: computing
      .filter((row) => named(row) === name)
      .map((row) => ({
        x: row.operations / row.bytes,
        y: (row.operations / row.us) * 1e6,
        title: `${name}, ${row.shape}: ${number(row.us)} µs`,
      })),
  }));
  const bounded = ran.filter((row) => row.fraction !== null);
  const limits = bars({
    title: "Share of what the device does at most",
    unit: "%",
    rows: bounded.map((row) => ({
      name: `${named(row)}, ${row.shape}`,
      color: row.bound === "memory" ? 0 : 1,
      parts: [row.fraction * 100],
      note: `of ${row.bound}, ${number(row.us)} µs${row.times_dense ? `, ${number(row.times_dense)} x dense` : ""}`,
    })),
  });
  const skipped = report.rows.filter((row) => row.skipped).map((row) => [row.kernel, row.skipped]);
  return [
    note(`${device(report)}: reads ${number(ceiling.bytes_s * 1e-9)} GB/s, f32 ${number(ceiling.f32_s * 1e-12)} TFLOP/s`),
    figures(
      chart({
        title: "Roofline",
        x: { title: "operations a byte", log: true },
        y: { title: "operations a second", log: true },
        series: [...roofs(ceiling, series), ...series],
      }),
      limits,
      skipped.length > 0 ? table(["kernel", "why it did not run"], skipped) : undefined,
    ),
  ];
}

/** Lines that no kernel can pass. */
function roofs({ bytes_s, f32_s, matrix_s }, series) {
  const intensities = series.flatMap(({ points: all }) => all.map((point) => point.x));
  return [
    ["f32", f32_s],
    ["matrices", matrix_s],
  ]
    .filter(([, rate]) => rate)
    .map(([name, rate]) => {
      const knee = rate / bytes_s;
      const [low, high] = [Math.min(knee / 10, ...intensities), Math.max(knee * 10, ...intensities)];
      const corners = points([
        [low, low * bytes_s],
        [knee, rate],
        [high, rate],
      ]);
      return { name: `${name}: ${number(rate * 1e-12)} TFLOP/s`, join: "line", points: corners };
    });
}

/** Loads over HTTP: rows of `serve.json`. */
function serve(rows) {
  const name = (row) => (row.offered_per_s === null ? row.workload : `${row.workload}, ${number(row.offered_per_s)}/s`);
  const heads = ["load", "requests", "failed", "output tok/s", "requests/s", "hit rate", "good/s"];
  const line = (row) => [
    name(row),
    row.requests,
    row.failed,
    ...[row.output_tok_s, row.requests_per_s].map(number),
    percent(row.hit_rate),
    number(row.goodput_per_s),
  ];
  const swept = unique(rows.map((row) => row.workload)).filter(
    (workload) => rows.filter((row) => row.workload === workload).length > 1,
  );
  return [
    note(`${rows[0].model}, ${rows[0].adapter ? `${rows[0].adapter.name}, driver ${rows[0].adapter.driver}` : rows[0].url}`),
    figures(
      table(heads, rows.map(line)),
      ...latencies(rows, name),
      ...swept.flatMap((workload) =>
        sweep(
          workload,
          rows.filter((row) => row.workload === workload),
        ),
      ),
      ...rows.flatMap((row) => sent(name(row), row.sent ?? [])),
    ),
  ];
}

/** Latencies and goodput over the rates of a workload. */
function sweep(workload, rows) {
  const over = (name, of) => ({
    name,
    join: "line",
    points: rows.map((row) => ({ x: row.offered_per_s, y: of(row) ?? NaN })),
  });
  const x = { title: "requests a second, offered" };
  const three = (key) => PERCENTILES.map((p) => over(p, (row) => row[key][p]));
  const good = [over("within the limits", (row) => row.goodput_per_s), over("offered", (row) => row.offered_per_s)];
  return [
    chart({ title: `${workload}: first token`, x, y: { title: "ms", log: true }, series: three("ttft_ms") }),
    chart({ title: `${workload}: between tokens`, x, y: { title: "ms", log: true }, series: three("inter_token_ms") }),
    rows.some((row) => row.goodput_per_s !== null)
      ? chart({
          title: `${workload}: within the limits ${rows[0].slo}`,
          x,
          y: { title: "requests a second" },
          series: good,
        })
      : undefined,
  ];
}

/** The requests of a load over time, and the shares of its times below each limit. */
function sent(name, all) {
  const answers = all.filter((answer) => answer.error === null || answer.error === undefined);
  const over = (title, of) => ({
    name: title,
    points: answers.map((answer) => ({ x: answer.at_s, y: of(answer) ?? NaN })),
  });
  const shares = (title, values) => {
    const sorted = values.filter((value) => holds({ log: true }, value)).toSorted((a, b) => a - b);
    return {
      name: title,
      join: "steps",
      points: sorted.map((x, rank) => ({ x, y: ((rank + 1) / sorted.length) * 100 })),
    };
  };
  const first = (answer) => answer.first_ms;
  const whole = (answer) => answer.e2e_ms;
  const distributions = [
    shares("first token", answers.map(first)),
    shares(
      "between tokens",
      answers.flatMap((answer) => answer.gaps_ms),
    ),
    shares("whole answer", answers.map(whole)),
  ];
  const [seconds, ms] = [{ title: "seconds" }, { title: "ms", log: true }];
  return [
    chart({
      title: `${name}: requests`,
      x: seconds,
      y: ms,
      series: [over("first token", first), over("whole answer", whole)],
    }),
    chart({ title: `${name}: times below a limit`, x: ms, y: { title: "share", unit: " %" }, series: distributions }),
  ];
}

/** First tokens before and after a server is killed: rows of `restart.json`. */
function restart(rows) {
  const over = (name, key) => ({
    name,
    join: "line",
    points: rows.map((row) => ({ x: row.prompt_tokens, y: row[key].median, low: row[key].low, high: row[key].high })),
  });
  const series = [over("cold", "cold_ms"), over("restored from disk", "restored_ms"), over("warm", "warm_ms")];
  const [x, y] = [
    { title: "prompt tokens", log: true },
    { title: "ms", log: true },
  ];
  const line = (row) => [
    row.prompt_tokens,
    ...["cold_ms", "restored_ms", "warm_ms"].map((key) => number(row[key].median)),
    row.restored_tokens,
  ];
  const heads = ["prompt tokens", "cold, ms", "restored, ms", "warm, ms", "tokens from disk"];
  const [begun, again] = rows[0].start_s.map(number);
  return [
    note(`${rows[0].adapter}; the server was ready after ${begun} s, and after ${again} s when it was started again`),
    figures(chart({ title: "First token across a restart", x, y, series }), table(heads, rows.map(line))),
  ];
}

/** Turnover of selections: rows of `turnover.json`. */
function turnover(rows) {
  const share = (title, key) =>
    bars({
      title,
      unit: "%",
      rows: rows.map((row) => ({ name: row.policy, parts: [row[key] * 100], note: `p90 ${percent(row.p90)}` })),
    });
  const heads = ["policy", "blocks", "density", "mean", "p50", "p90", "not in the last 4", "not in the last 16"];
  const line = (row) => [
    row.policy,
    number(row.blocks),
    ...["density", "mean", "p50", "p90", "last_4", "last_16"].map((key) => percent(row[key])),
  ];
  const layers = (row) => {
    const most = Math.max(1, ...row.layers.map((heads) => heads.length));
    const columns = Array.from({ length: most }, (_, head) => String(head));
    const values = row.layers.map((heads) => columns.map((_, head) => heads[head] ?? NaN));
    const y = { title: "layer", labels: row.layers.map((_, layer) => String(layer)) };
    return heat({
      title: `${row.policy}: share of new blocks a step`,
      x: { title: "KV head", labels: columns },
      y,
      values,
    });
  };
  const { model, device: adapter, tokens, steps } = rows[0];
  return [
    note(`${model}, ${adapter}: ${number(tokens)} tokens, ${number(steps)} decode steps`),
    figures(share("Blocks that the step before did not select", "mean"), table(heads, rows.map(line)), ...rows.map(layers)),
  ];
}

/** Tables of whatever rows there are. */
function other(data) {
  const lists = Array.isArray(data) ? [data] : Object.values(data).filter(Array.isArray);
  return lists
    .filter((rows) => typeof rows[0] === "object")
    .map((rows) => {
      const heads = Object.keys(rows[0]).filter((key) => typeof (rows[0][key] ?? 0) !== "object");
      return table(
        heads,
        rows.map((row) => heads.map((head) => number(row[head]))),
      );
    });
}

const SUITES = {
  e2e: ["Complete requests", e2e],
  trace: ["A trace of arrivals", trace],
  kernels: ["Kernels alone", kernels],
  serve: ["Requests over HTTP", serve],
  restart: ["A restart of the server", restart],
  policies: ["Sparse policies", policies],
  report: ["Sparse attention: what it loses, what it gains", report],
  turnover: ["Turnover of selections", turnover],
};

/** Parts of a section; what another version of the program wrote may be told instead of drawn. */
function drawnOr(draw, data) {
  try {
    return draw(data);
  } catch (error) {
    return [html("p", { class: "fault" }, `These results cannot be drawn: ${error.message}`)];
  }
}

/** Draws all results, `[{ suite, file, data }]`, into `main`, with links to each in `nav`. */
export function show(results, main, nav) {
  for (const { suite, file, data } of results) {
    const [title, draw] = SUITES[suite] ?? [suite, other];
    const anchor = file.replace(/[^\w.-]/g, "_");
    if (results.length > 1) nav.append(html("a", { href: `#${anchor}` }, file));
    const empty = Array.isArray(data) && data.length === 0;
    const parts = empty ? [note("No row was measured.")] : drawnOr(draw, data);
    main.append(
      html("section", { id: anchor, "data-suite": suite }, html("h2", {}, title), note(file), parts),
    );
  }
}
