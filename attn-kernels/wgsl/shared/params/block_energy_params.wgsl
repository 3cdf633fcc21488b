// Uniform parameters of block_energy and block_energy_coop.
struct BlockEnergyParams {
    num_heads: u32,
    num_kv_heads: u32,
    q_stride: u32,
    q_first: u32,
    q_len: u32,
    front: u32,
    first_block: u32,
    current: u32, // key block of query block 0
    mean_stride: u32,
    energy_stride: u32,
    scale: f32,
    query_blocks: u32,
}

@group(0) @binding(0) var<uniform> params: BlockEnergyParams;
