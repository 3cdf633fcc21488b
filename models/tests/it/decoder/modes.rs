//! The table of modes: decoders agree with it, and so does the documentation.

use std::fmt::Write;

use attn_kernels::kernel::KvDtype;
use models::{
    AttentionForm, DecoderOptions, HostMemory, Mode, ModelError, Offload, SelectionPlace, SparseOptions,
};

use super::tiny::family;
use super::{blocks_of, options};

/// A tiny model of each form of attention; the second one has full layers beside windows.
const MODELS: [(AttentionForm, &str); 7] = [
    (AttentionForm::Heads, "tiny-llama"),
    (AttentionForm::Heads, "tiny-gpt-oss"),
    (AttentionForm::Windows, "tiny-mistral"),
    (AttentionForm::Latents, "tiny-deepseek-v3"),
    (AttentionForm::IndexedLatents, "tiny-deepseek-v32"),
    (AttentionForm::Compressed, "tiny-deepseek-v4"),
    (AttentionForm::Native, "tiny-nsa"),
];

fn asking_for(mode: Mode) -> DecoderOptions {
    let mut asking = blocks_of(16, &options(KvDtype::F16));
    if mode == Mode::CodedKv {
        asking.kv_dtype = KvDtype::Int8;
    }
    if matches!(mode, Mode::Sparse | Mode::SparseHostKv) {
        let policy = sparse_select::build("quest:page_budget=6,block_size=16").unwrap().into();
        asking.sparse = Some(SparseOptions::new(policy, SelectionPlace::Device));
    }
    if matches!(mode, Mode::HostKv | Mode::SparseHostKv) {
        asking.offload = Some(Offload::new(256, 2, HostMemory::Mapped));
        asking.recycle = false;
    }
    asking
}

#[test]
fn decoders_refuse_what_the_table_refuses_and_nothing_else() {
    for (form, name) in MODELS {
        assert_eq!(AttentionForm::of(&family(name).config), form, "{name}");
        for mode in Mode::ALL {
            let result = family(name).try_decoder(&asking_for(mode));
            match (mode.lacks(form), result) {
                (None, Ok(_)) | (Some(_), Err(ModelError::Mode { .. })) => {}
                (lacks, result) => panic!("{mode} with {name}: {lacks:?}, but {:?}", result.err()),
            }
        }
    }
}

#[test]
fn the_readme_has_the_table() {
    let mut table = String::from("| attention |");
    Mode::ALL.iter().for_each(|mode| write!(table, " {mode} |").unwrap());
    table += "\n|---|---|---|---|---|\n";
    for form in AttentionForm::ALL {
        write!(table, "| {form} |").unwrap();
        for mode in Mode::ALL {
            table += if mode.lacks(form).is_none() { " yes |" } else { " no |" };
        }
        table.push('\n');
    }
    assert!(include_str!("../../../README.md").contains(&table), "models/README.md lacks\n{table}");
}
