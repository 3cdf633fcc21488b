// Devices with no more than kernels need, and one case on a device.

import * as compare from "./compare.mjs";

// Bytes on either side of a buffer that no kernel may write, of this word: the alignment of bindings in WebGPU.
const GUARD = 256;
const UNTOUCHED = 0xffe1dead;

// Bytes of a uniform binding that is a window on a larger buffer.
const WINDOW = 65536;

// Texels in a full row of an image, and bytes of one.
const IMAGE_ROW = 4096;
const TEXEL = 16;

// What this browser lacks of what a kernel needs, if anything.
export function lacking(adapter, { features, language, limits, subgroups, beyond }) {
  if (beyond) return beyond;
  const feature = features.find((name) => !adapter.features.has(name));
  if (feature) return `no ${feature}`;
  const word = language.find((name) => !navigator.gpu.wgslLanguageFeatures.has(name));
  if (word) return `no ${word} in WGSL`;
  const limit = Object.keys(limits).find((name) => adapter.limits[name] < limits[name]);
  if (limit) return `${limit} of ${adapter.limits[limit]}, ${limits[limit]} are needed`;
  const { subgroupMinSize: smallest, subgroupMaxSize: largest } = adapter.info;
  const [least, most] = subgroups ?? [smallest, largest];
  if (smallest < least || largest > most) {
    return `subgroups of ${smallest} to ${largest}, ${least} to ${most} are needed`;
  }
  return undefined;
}

// Devices by what they were opened with. One without features has WebGPU's default limits.
export class Devices {
  #open = new Map();

  async get({ features, limits }) {
    const key = JSON.stringify([features, limits]);
    if (!this.#open.has(key)) {
      // An adapter gives out one device.
      const adapter = await navigator.gpu.requestAdapter();
      const device = await adapter.requestDevice({ requiredFeatures: features, requiredLimits: limits });
      device.lost.then(() => this.#open.delete(key));
      this.#open.set(key, device);
    }
    return this.#open.get(key);
  }
}

const LAYOUTS = {
  read: { buffer: { type: "read-only-storage" } },
  write: { buffer: { type: "storage" } },
  window: { buffer: { type: "uniform" } },
  image: { storageTexture: { access: "read-only", format: "rgba32uint" } },
};

// Compiles a variant.
export async function compile(device, { entry_point: entryPoint, constants, bindings }, code) {
  const accesses = [{ buffer: { type: "uniform" } }, ...bindings.map(({ access }) => LAYOUTS[access])];
  const entries = accesses.map((access, binding) => ({ binding, visibility: GPUShaderStage.COMPUTE, ...access }));
  const layout = device.createBindGroupLayout({ entries });
  const module = device.createShaderModule({ code });
  const { messages } = await module.getCompilationInfo();
  const error = messages.find(({ type }) => type === "error");
  if (error) throw new Error(`line ${error.lineNum} of its text: ${error.message}`);
  const pipeline = await device.createComputePipelineAsync({
    layout: device.createPipelineLayout({ bindGroupLayouts: [layout] }),
    compute: { module, entryPoint, constants },
  });
  return { pipeline, layout };
}

// A buffer between guards, with the part that a kernel sees.
function guarded(device, data, access) {
  const behind = access === "window" ? WINDOW : GUARD;
  const usage = access === "window" ? GPUBufferUsage.UNIFORM : GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC;
  const buffer = device.createBuffer({ size: GUARD + data.byteLength + behind, usage, mappedAtCreation: true });
  const words = new Uint32Array(buffer.getMappedRange()).fill(UNTOUCHED);
  words.set(data, GUARD / 4);
  buffer.unmap();
  const size = access === "window" ? WINDOW : undefined;
  return { buffer, resource: { buffer, offset: GUARD, size }, destroy: () => buffer.destroy() };
}

// A texture that holds words, four a texel.
function image(device, data) {
  const texels = Math.max(1, Math.ceil(data.byteLength / TEXEL));
  const [width, height] = [Math.min(texels, IMAGE_ROW), Math.ceil(texels / IMAGE_ROW)];
  const usage = GPUTextureUsage.STORAGE_BINDING | GPUTextureUsage.COPY_DST;
  const texture = device.createTexture({ size: [width, height], format: "rgba32uint", usage });
  const words = new Uint32Array((width * height * TEXEL) / 4);
  words.set(data);
  device.queue.writeTexture({ texture }, words, { bytesPerRow: width * TEXEL }, [width, height]);
  return { resource: texture.createView(), destroy: () => texture.destroy() };
}

// Runs a case between words that no kernel may write; returns what is wrong with what it leaves, if anything.
export async function run(device, { pipeline, layout }, { bindings, params_bytes: size }, test, blob) {
  const data = ([at, bytes]) => new Uint32Array(blob, at, bytes / 4);
  const bound = test.buffers.map((place, at) => {
    const { access } = bindings[at];
    return access === "image" ? image(device, data(place)) : guarded(device, data(place), access);
  });
  const encoder = device.createCommandEncoder();
  const pass = encoder.beginComputePass();
  pass.setPipeline(pipeline);
  for (const { params, grid } of test.dispatches) {
    const buffer = device.createBuffer({ size, usage: GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST });
    device.queue.writeBuffer(buffer, 0, data(params));
    const resources = [{ buffer }, ...bound.map(({ resource }) => resource)];
    const entries = resources.map((resource, binding) => ({ binding, resource }));
    pass.setBindGroup(0, device.createBindGroup({ layout, entries }));
    pass.dispatchWorkgroups(...grid);
  }
  pass.end();
  const written = bindings.flatMap(({ access }, at) => (access === "write" ? [at] : []));
  const reads = written.map((at) => {
    const { buffer } = bound[at];
    const usage = GPUBufferUsage.COPY_DST | GPUBufferUsage.MAP_READ;
    const read = device.createBuffer({ size: buffer.size, usage });
    encoder.copyBufferToBuffer(buffer, 0, read, 0, buffer.size);
    return read;
  });
  device.queue.submit([encoder.finish()]);
  await Promise.all(reads.map((read) => read.mapAsync(GPUMapMode.READ)));
  const after = new Map(reads.map((read, at) => [written[at], read.getMappedRange().slice()]));
  for (const { destroy } of bound) destroy();
  for (const read of reads) read.destroy();
  return differs(test, after, data);
}

function differs({ buffers, wants }, after, data) {
  for (const [binding, buffer] of after) {
    const words = new Uint32Array(buffer);
    const end = words.length - GUARD / 4;
    const at = words.findIndex((word, at) => (at < GUARD / 4 || at >= end) && word !== UNTOUCHED);
    if (at >= 0) {
      const of = buffers[binding][1] / 4;
      return `binding ${binding + 1}: word ${at - GUARD / 4} of ${of} was written, which is outside the buffer`;
    }
  }
  for (const { binding, floats, words, indices } of wants) {
    const buffer = after.get(binding).slice(GUARD, -GUARD);
    const wrong = floats
      ? compare.floats(compare.values(floats.layout, buffer), new Float32Array(data(floats.want).slice().buffer), floats)
      : words
        ? compare.words(new Uint32Array(buffer), data(words.want))
        : compare.indices(new Uint32Array(buffer), indices);
    if (wrong) return `binding ${binding + 1}: ${wrong}`;
  }
  return undefined;
}
