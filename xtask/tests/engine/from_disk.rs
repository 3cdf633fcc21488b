//! `--sparse` with the tiny Llama, for contexts that neither device nor host holds.

use crate::tiers::{count, disk, serve};
use crate::{ids_file, output_ids, prompts, refused, tiny};

#[test]
fn selected_blocks_of_a_prompt_larger_than_device_and_host_come_from_the_disk() {
    let [long] = prompts([1000]);
    let long = std::slice::from_ref(&long);
    let folder = tempfile::tempdir().unwrap();
    // 63 blocks of 6 KiB for the prompt, of which the host has no room for half.
    let spec = format!("host=200KiB,{}", disk(folder.path()));
    let tight = ["--kv-blocks", "48", "--chunk", "64", "--kv-tiers", &spec];
    for (policy, ahead) in [
        ("quest:page_budget=6,dense_layers=0", true),
        ("gsa:scoring=mean_k,sparse_ratio=0.2,block_size=16", true),
        ("gsa", false),
    ] {
        let sparse = ["--reproducible", "--sparse", policy];
        let small = serve(long, &[&tight[..], &sparse].concat());
        let roomy = serve(long, &[&["--chunk", "64"], &sparse[..]].concat());
        assert_eq!(output_ids(&small), output_ids(&roomy), "{policy}");
        let tiers = &small[0]["tiers"];
        assert!(count(&small, "disk", "bytes_read") > 0 && count(&small, "device", "misses") > 0, "{tiers}");
        let read = |counter: &str| tiers["device"]["ahead"][counter].as_u64().unwrap();
        assert_eq!(read("predicted") > 0, ahead, "{policy}: {tiers}");
        assert!(read("used") + read("late") <= read("predicted"), "{policy}: {tiers}");
    }
    // A policy that looks at all keys keeps to the host.
    let mut generate = tiny("generate");
    let file = ids_file(&long);
    let said =
        refused(generate.arg("--ids-file").arg(file.path()).args(tight).args(["--sparse", "xattn"]), 1);
    assert!(said.contains("blocks"), "{said}");
}
