// Keys of a row that one workgroup attends, of the `keys` that the row sees: a multiple of 256. Long rows take more at a
// time, which leaves less to merge, and still fill a GPU alone. The row alone decides, whatever is beside it in the batch.
fn partition_of(keys: u32) -> u32 {
    return 256u << (u32(keys >= 16384u) + u32(keys >= 32768u));
}
