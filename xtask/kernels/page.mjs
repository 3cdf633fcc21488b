// Runs every variant of cases.json, and shows a table. Opened with ?report, it also posts each row to the server.

import * as device from "./device.mjs";

// Variants that run at a time: compilers of drivers take most of the time.
const WORKERS = 2;

const summary = document.getElementById("summary");
const counts = { passed: 0, failed: 0, lacking: 0 };

function text(blocked = "") {
  return `${counts.passed} passed, ${counts.failed} failed, ${counts.lacking} need more than this browser has${blocked}`;
}

async function report(message) {
  if (location.search !== "?report") return;
  await fetch("report", { method: "POST", body: JSON.stringify(message) });
}

async function show(row) {
  counts[row.outcome]++;
  summary.textContent = text();
  const line = document.getElementById("rows").insertRow();
  line.className = row.outcome;
  for (const cell of [row.name, row.outcome, Math.round(row.ms), row.note]) line.insertCell().textContent = cell;
  await report({ row });
}

// Runs the cases of a variant; returns the first fault.
async function fault(devices, variant, blob) {
  const gpu = await devices.get(variant.needs);
  const code = await (await fetch(variant.wgsl)).text();
  gpu.pushErrorScope("out-of-memory");
  gpu.pushErrorScope("validation");
  let wrong;
  try {
    const compiled = await device.compile(gpu, variant, code);
    for (const test of variant.cases) {
      wrong = await device.run(gpu, compiled, variant, test, blob);
      if (wrong) {
        wrong = `${test.what}, ${wrong}`;
        break;
      }
    }
  } catch (error) {
    wrong = error.message;
  }
  const errors = await Promise.all([gpu.popErrorScope(), gpu.popErrorScope()]).catch(() => []);
  return errors.find((error) => error)?.message ?? wrong;
}

async function work(adapter, variants, blob) {
  // Scopes of errors are those of a device, so each worker has its own.
  const devices = new device.Devices();
  for (const variant of variants) {
    const start = performance.now();
    const lacks = device.lacking(adapter, variant.needs);
    const wrong = lacks ? undefined : await fault(devices, variant, blob).catch((error) => error.message);
    const outcome = lacks ? "lacking" : wrong ? "failed" : "passed";
    await show({ name: variant.name, outcome, note: lacks ?? wrong ?? "", ms: performance.now() - start });
  }
}

async function main() {
  const adapter = await navigator.gpu?.requestAdapter();
  if (!adapter) throw new Error("this browser has no WebGPU here");
  const { vendor, architecture, description } = adapter.info;
  const [{ variants }, blob] = await Promise.all([
    fetch("cases.json").then((reply) => reply.json()),
    fetch("cases.bin").then((reply) => reply.arrayBuffer()),
  ]);
  const queue = variants.values();
  await Promise.all(Array.from({ length: WORKERS }, () => work(adapter, queue, blob)));
  const name = [vendor, architecture, description].filter((part) => part).join(" ");
  await report({ end: { browser: navigator.userAgent, adapter: name } });
  document.title = text();
}

main().catch(async (error) => {
  summary.textContent = error.message;
  document.title = `failed: ${error.message}`;
  await report({ error: error.message });
});
