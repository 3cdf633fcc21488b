//! `xattn-bsa` over chunks of few queries, as software drivers and servers make them.

use models::SelectionPlace;

use super::invariance::assert_same;
use super::served::{Request, serve};
use super::sparse::{density, long_prompt, sparse};
use super::tiny::tiny;

/// Chunks far shorter than a tile of the published kernel, which end within a stride, select what the policy's own code does; of
/// fewer queries than a stride has, all blocks are attended.
#[test]
fn short_chunks_vote_too() {
    let ids = long_prompt();
    for (stride, chunk) in [(4, 3), (4, 18), (2, 50), (1, 1)] {
        let spec = format!("xattn-bsa:block_size=16,stride={stride},threshold=0.3");
        let run = |place| {
            let one = Request { prefill: 131, ..Request::new(&ids[..131], 2) };
            let other = Request { prefill: 95, ..Request::new(&ids[7..102], 2) };
            serve(&mut tiny().decoder(&sparse(&spec, place)), &[one, other], chunk)
        };
        let (device, host) = (run(SelectionPlace::Device), run(SelectionPlace::Host));
        for (device, host) in device.iter().zip(&host) {
            assert_eq!(device.attended, host.attended, "{spec}, chunks of {chunk}");
            assert_same(&spec, device, host);
            let some = chunk >= stride;
            assert_eq!(density(&host.attended) < 1.0, some, "{spec}, chunks of {chunk}");
        }
    }
}
