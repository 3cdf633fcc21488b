// Compares what a kernel left in a buffer with what it should have left. Each function returns a sentence about the first or worst
// difference, or nothing.

const bits = new DataView(new ArrayBuffer(4));

function fromBits(word) {
  bits.setUint32(0, word);
  return bits.getFloat32(0);
}

// A float of a sign, an exponent and a mantissa of so many bits, which is finite.
function small(code, exponentBits, mantissaBits) {
  const bias = 2 ** (exponentBits - 1) - 1;
  const mantissa = code & (2 ** mantissaBits - 1);
  const exponent = (code >> mantissaBits) & (2 ** exponentBits - 1);
  const size = exponent === 0
    ? mantissa * 2 ** (1 - bias - mantissaBits)
    : (1 + mantissa / 2 ** mantissaBits) * 2 ** (exponent - bias);
  return code >> (exponentBits + mantissaBits) ? -size : size;
}

function f16(code) {
  if (((code >> 10) & 31) !== 31) return small(code, 5, 10);
  if (code & 1023) return NaN;
  return code >> 15 ? -Infinity : Infinity;
}

// Numbers by their format: see `Format` in attn-kernels/src/self_test/floats.rs.
const READ = {
  f32: (view, at) => view.getFloat32(at, true),
  f16: (view, at) => f16(view.getUint16(at, true)),
  bf16: (view, at) => fromBits(view.getUint16(at, true) << 16),
  fp8: (view, at) => ((view.getUint8(at) & 127) === 127 ? NaN : small(view.getUint8(at), 4, 3)),
  int8: (view, at) => view.getInt8(at),
  exponent: (view, at) => fromBits(view.getUint8(at) << 23),
};

// The floats that a buffer holds in records of `layout`.
export function values({ bytes, elements }, buffer) {
  const view = new DataView(buffer);
  const read = ({ format, at }, record) => READ[format](view, record + at);
  const floats = new Float32Array(Math.floor(buffer.byteLength / bytes) * elements.length);
  let next = 0;
  for (let record = 0; record + bytes <= buffer.byteLength; record += bytes) {
    for (const { number, scale } of elements) {
      floats[next++] = read(number, record) * (scale ? read(scale, record) : 1);
    }
  }
  return floats;
}

// Compares floats within `abs + rel * |want|`. Infinities must be equal, NaN is equal to NaN alone. With `finite`, elements that
// should not be finite may be anything.
export function floats(got, want, { abs, rel, finite }) {
  let [worst, outside, told] = [0, 0, undefined];
  if (got.length !== want.length) return `there are ${got.length} elements, the reference has ${want.length}`;
  for (let index = 0; index < want.length; index++) {
    const [g, w] = [got[index], want[index]];
    if (g === w || (Number.isNaN(g) && Number.isNaN(w)) || (finite && !Number.isFinite(w))) continue;
    const bound = abs + rel * Math.abs(w);
    const excess = Number.isFinite(g) && Number.isFinite(w) ? Math.abs(g - w) - bound : Infinity;
    if (excess <= 0) continue;
    outside++;
    if (excess > worst) {
      worst = excess;
      told = `element ${index} of ${want.length} is ${g}, the reference says ${w}, which may differ by ${bound}`;
    }
  }
  return told && `${told} (${outside} elements are outside)`;
}

// Compares words, which must be equal.
export function words(got, want) {
  if (got.length !== want.length) return `there are ${got.length} words, the reference has ${want.length}`;
  const index = want.findIndex((word, index) => got[index] !== word);
  if (index < 0) return undefined;
  return `word ${index} of ${want.length} is ${got[index]}, the reference says ${want[index]}`;
}

// Checks indices that a later kernel would use: runs of `stride` words, each below its limit.
export function indices(got, { order, stride, limits, none }) {
  for (const [run, limit] of limits.entries()) {
    let indices = got.subarray(run * stride, (run + 1) * stride);
    if (order === "list") {
      const count = indices[0];
      if (count >= stride) return `list ${run} of ${stride} words counts ${count} indices`;
      indices = indices.subarray(1, 1 + count);
    } else {
      indices = indices.slice().sort();
    }
    const wrong = indices.find((index) => index >= limit && index !== none);
    if (wrong !== undefined) return `run ${run} has index ${wrong}, the limit is ${limit}`;
    const at = indices.findIndex((index, at) => at > 0 && indices[at - 1] >= index);
    if (at > 0) return `run ${run} has index ${indices[at - 1]} and then ${indices[at]}`;
  }
  return undefined;
}
