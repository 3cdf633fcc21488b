//! Sizes of hyper-connections.

use dense_kernels::checkpoint::HyperConfig;
use dense_kernels::kernel::hyper_collapse::{self, Reader};

#[test]
fn mixes_of_files_are_those_of_the_kernel() {
    for streams in 1..=16 {
        let config = HyperConfig { streams, rounds: 1, eps: 0.0 };
        assert_eq!(config.block_mixes(), hyper_collapse::mixes(streams, Reader::Block));
        assert_eq!(streams, hyper_collapse::mixes(streams, Reader::Head));
    }
}
