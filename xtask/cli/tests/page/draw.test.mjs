// Axes of the page of `bench`: node --test xtask/cli/tests/page/draw.test.mjs

import assert from "node:assert/strict";
import test from "node:test";

import { holds, number, scaled } from "../../bench/draw.mjs";

const labels = (axis, values) => {
  const { ticks, label } = scaled(axis, values);
  return ticks.map(label).join(" ");
};

test("ticks are round and tell one from the next", () => {
  assert.equal(labels({ log: true }, [20, 900]), "20 50 100 200 500 1000");
  assert.equal(labels({ log: true }, [2, 200_000]), "10 100 1000 10k 100k");
  assert.equal(labels({}, [0.3, 0.95]), "0 0.2 0.4 0.6 0.8 1.0");
  assert.equal(labels({}, [103, 104]), "103.0 103.2 103.4 103.6 103.8 104.0");
  assert.equal(labels({}, [0, 131_072]), "0 50k 100k 150k");
  assert.equal(labels({}, [-0.004, 0.02]), "-0.005 0 0.005 0.010 0.015 0.020");
  assert.equal(labels({ close: true }, [1, 1.6]), "1.0 1.2 1.4 1.6");
});

test("every axis has two ticks or more that differ, and its ends hold all values", () => {
  let seed = 1;
  const random = () => (seed = (seed * 48271) % 2147483647) / 2147483647;
  for (let turn = 0; turn < 5000; turn += 1) {
    const axis = { log: random() < 0.5, close: random() < 0.5 };
    const scale = 10 ** Math.floor(random() * 24 - 12);
    const values = Array.from({ length: Math.floor(random() * 5) }, () => (random() * 2 - 1) * 1e9 * scale);
    const shown = values.filter((value) => holds(axis, value));
    const { low, high, ticks, label } = scaled(axis, shown);
    const said = JSON.stringify({ axis, shown, ticks: ticks.map(label) });
    assert.ok(ticks.length >= 2 && ticks.length <= 40, said);
    assert.equal(new Set(ticks.map(label)).size, ticks.length, said);
    const slack = 1e-9 * (high - low);
    assert.ok(shown.every((value) => low - slack <= value && value <= high + slack), said);
  }
});

test("values below a floor are drawn at the floor", () => {
  const { part } = scaled({ log: true, floor: 0.01 }, [-1, 0, 8]);
  assert.deepEqual([part(-1), part(0), part(0.01), part(10)], [0, 0, 0, 1]);
});

test("numbers have four digits", () => {
  assert.deepEqual([0, 0.012345, 12.345, 98_561.4, null, "a"].map(number), ["0", "0.01235", "12.35", "98,561", "-", "a"]);
});
