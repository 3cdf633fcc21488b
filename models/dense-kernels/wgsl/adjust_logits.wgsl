// Edits logits in place before tokens are drawn: forbidden tokens get minus infinity, then biases are added, then penalties
// act on tokens that occurred before.
//   logits [.., vocab] f32;  rows [rows] AdjustRow;  masks: a bit a token, 1 = allowed
//   edits [..] (token, operand), of each row three lists: suppressed tokens (operand unused), biases (f32), counts (u32)
// Grid: (ceil(vocab / PART), rows). A workgroup reads all edits of its row and applies those of its PART tokens, so that the
// three lists act in order. Tokens outside the vocabulary change nothing. CPU reference: src/cpu/adjust_logits.rs
override WG: u32 = 256u;
override PART: u32 = 8192u;

const NO_MASK: u32 = 0xffffffffu;

struct AdjustLogitsParams { rows: u32, vocab: u32, neg_inf: f32 }

struct AdjustRow {
    row: u32,
    mask: u32, // its first word, or NO_MASK
    suppressed: u32, // first entry of each list; the last one ends at `end`
    biases: u32,
    counts: u32,
    end: u32,
    repetition: f32,
    presence: f32,
    frequency: f32,
}

@group(0) @binding(0) var<uniform> params: AdjustLogitsParams;
@group(0) @binding(1) var<storage, read> rows: array<AdjustRow>;
@group(0) @binding(2) var<storage, read> masks: array<u32>;
@group(0) @binding(3) var<storage, read> edits: array<vec2<u32>>;
@group(0) @binding(4) var<storage, read_write> logits: array<f32>;

@compute @workgroup_size(WG)
fn adjust_logits(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = rows[group.y];
    let base = row.row * params.vocab;
    let first = group.x * PART;
    let end = min(first + PART, params.vocab);
    if (row.mask != NO_MASK) {
        for (var token = first + lane; token < end; token += WG) {
            if (((masks[row.mask + token / 32u] >> (token % 32u)) & 1u) == 0u) {
                logits[base + token] = params.neg_inf;
            }
        }
    }
    for (var i = row.suppressed + lane; i < row.biases; i += WG) {
        let token = edits[i].x;
        if (token >= first && token < end) {
            logits[base + token] = params.neg_inf;
        }
    }
    storageBarrier();
    for (var i = row.biases + lane; i < row.counts; i += WG) {
        let edit = edits[i];
        if (edit.x >= first && edit.x < end) {
            logits[base + edit.x] += bitcast<f32>(edit.y);
        }
    }
    storageBarrier();
    for (var i = row.counts + lane; i < row.end; i += WG) {
        let edit = edits[i];
        if (edit.x >= first && edit.x < end) {
            logits[base + edit.x] = penalised(row, logits[base + edit.x], edit.y);
        }
    }
}

// The logit of a token that occurred, `count` times in the output.
fn penalised(row: AdjustRow, logit: f32, count: u32) -> f32 {
    let repeated = select(logit * row.repetition, logit / row.repetition, logit > 0.0);
    return repeated - row.frequency * f32(count) - select(0.0, row.presence, count > 0u);
}
