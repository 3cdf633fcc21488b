//! Bindings and parameters of kernels on the host against their WGSL.

#[path = "../../../../attn-kernels/tests/it/layout/checks.rs"]
mod checks;

use dense_kernels::kernel::{adjust_logits, catalog, sample, top_logits, variants};
use std::path::Path;

/// `(name, bytes, (field, offset) of every field)` of a struct.
macro_rules! layout {
    ($name:ident: $($field:ident)*) => {
        (
            stringify!($name),
            size_of::<$name>(),
            vec![$((stringify!($field), std::mem::offset_of!($name, $field))),*],
        )
    };
}

#[test]
fn uniform_structs_are_the_host_structs() {
    checks::structs(&variants());
}

/// Structs that kernels read from storage buffers, whose fields are words.
#[test]
fn structs_in_storage_are_the_host_structs() {
    use adjust_logits::AdjustRow;
    use sample::Spec;
    use top_logits::TopRequest;
    let layouts = [
        (
            include_str!("../../wgsl/shared/sampling/noise.wgsl"),
            layout!(Spec: temperature top_p min_p top_k seed_low seed_high position masked),
        ),
        (
            adjust_logits::KERNEL.wgsl,
            layout!(
                AdjustRow: row mask suppressed biases counts end repetition presence frequency
            ),
        ),
        (top_logits::KERNEL.wgsl, layout!(TopRequest: row tokens)),
    ];
    for (text, layout) in layouts {
        let body = text.split_once(&format!("struct {} {{", layout.0)).unwrap().1;
        let body = body.split_once('}').unwrap().0;
        let name = |field: &'static str| field.split_once(": ").map(|(name, _)| name.trim());
        let words = body.lines().map(|line| line.split("//").next().unwrap());
        let fields: Vec<&str> = words.flat_map(|line| line.split(',')).filter_map(name).collect();
        let expected: Vec<(&str, usize)> = fields.iter().copied().zip((0..).step_by(4)).collect();
        assert_eq!(layout, (layout.0, 4 * fields.len(), expected));
    }
}

#[test]
fn bindings_are_those_of_the_wgsl() {
    checks::bindings(&variants());
}

#[test]
fn every_file_is_in_the_catalog_and_has_variants() {
    let wgsl = Path::new(env!("CARGO_MANIFEST_DIR")).join("wgsl");
    checks::files(&wgsl, &catalog(), &variants());
}
