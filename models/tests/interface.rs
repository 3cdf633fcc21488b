//! What each variant asks of an adapter, as a snapshot: a kernel that suddenly needs more shows as one line.

#[path = "../../attn-kernels/tests/interface/levels.rs"]
mod levels;

use attn_kernels::reflect::interface;
use models::kernel::variants;

#[test]
fn interfaces() {
    for named in variants() {
        let interface = interface(&named.variant).unwrap_or_else(|e| panic!("{}: {e}", named.name));
        insta::assert_ron_snapshot!(format!("{}.{}", named.name, named.level), interface);
    }
}

#[test]
fn variants_stay_inside_the_default_limits_and_their_level() {
    variants().iter().for_each(levels::stays_inside);
}
