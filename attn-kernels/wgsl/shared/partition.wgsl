// Keys that one workgroup of paged_decode attends. Fixed: a size that looked at the batch would make results depend
// on it.
const PARTITION: u32 = 256u;
