// Sums over the SHARE lanes that own a row together, whose parts lie in `products`: `at` is that of the lane. They are added in
// one order for all of these lanes, so that they go on with the same bits.
fn row_sum(at: u32, lane: u32) -> f32 {
    let first = at - lane % SHARE;
    var sum = products[first];
    for (var part = 1u; part < SHARE; part++) {
        sum += products[first + part];
    }
    return sum;
}
