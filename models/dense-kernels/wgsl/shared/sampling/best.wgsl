// The largest of the values that the lanes of a workgroup bring, ties to the lower id; and sums.

const NO_ID: u32 = 0xffffffffu;

struct Best { value: f32, id: u32 }

var<workgroup> best_value: array<f32, WG>;
var<workgroup> best_id: array<u32, WG>;

// Ids of one lane come in ascending order. Values that are no numbers are not taken.
fn take(best: ptr<function, Best>, value: f32, id: u32) {
    if (value > (*best).value) {
        *best = Best(value, id);
    }
}

// Every lane of the workgroup calls this and the next function. NO_ID where every lane has that, and never else.
fn best_of_lanes(own: Best, place: u32) -> Best {
    best_value[place] = own.value;
    best_id[place] = own.id;
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (place < half) {
            let here = Best(best_value[place], best_id[place]);
            let there = Best(best_value[place + half], best_id[place + half]);
            let wins = there.value > here.value || (there.value == here.value && there.id < here.id);
            if (there.id != NO_ID && (wins || here.id == NO_ID)) {
                best_value[place] = there.value;
                best_id[place] = there.id;
            }
        }
    }
    return Best(workgroupUniformLoad(&best_value[0]), workgroupUniformLoad(&best_id[0]));
}

// In a fixed order.
fn sum_of_lanes(own: f32, place: u32) -> f32 {
    best_value[place] = own;
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (place < half) {
            best_value[place] += best_value[place + half];
        }
    }
    return workgroupUniformLoad(&best_value[0]);
}
