// The largest of the values that the lanes of a workgroup bring, ties to the lower id.

const NO_ID: u32 = 0xffffffffu;

struct Best { value: f32, id: u32 }

var<workgroup> best_value: array<f32, WG>;
var<workgroup> best_id: array<u32, WG>;

// Ids of one lane come in ascending order.
fn take(best: ptr<function, Best>, value: f32, id: u32) {
    if ((*best).id == NO_ID || value > (*best).value) {
        *best = Best(value, id);
    }
}

fn best_of_lanes(lane: u32, own: Best) -> Best {
    best_value[lane] = own.value;
    best_id[lane] = own.id;
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) {
            let value = best_value[lane + half];
            let id = best_id[lane + half];
            let ties = value == best_value[lane] && id < best_id[lane];
            if (value > best_value[lane] || ties || best_id[lane] == NO_ID) {
                best_value[lane] = value;
                best_id[lane] = id;
            }
        }
    }
    return Best(workgroupUniformLoad(&best_value[0]), workgroupUniformLoad(&best_id[0]));
}
