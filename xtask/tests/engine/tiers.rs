//! `--kv-tiers` with the tiny Llama: prefixes that outlive the device pool and the process, and what is refused.

use std::fs;
use std::path::Path;

use prefetch::tier::{BlockLayout, DiskConfig, DiskTier};
use serde_json::Value;

use crate::redis::Redis;
use crate::{ids_file, output_ids, prompts, refused, run, tiny, tiny_llama, xtask};

/// Variables of a process.
pub(crate) type Environment<'a> = &'a [(&'static str, String)];

/// Generates 8 tokens a prompt with the tiny Llama.
pub(crate) fn serve(lists: &[Vec<u32>], flags: &[&str]) -> Vec<Value> {
    serve_in(&[], lists, flags)
}

fn serve_in(environment: Environment<'_>, lists: &[Vec<u32>], flags: &[&str]) -> Vec<Value> {
    let file = ids_file(&lists);
    let mut generate = tiny("generate");
    generate.arg("--ids-file").arg(file.path()).args(["--max-tokens", "8"]).args(flags);
    run(generate.envs(environment.iter().cloned()))
}

pub(crate) fn disk(folder: &Path) -> String {
    format!("disk={}:16MiB", folder.display())
}

fn directory(folder: &Path) -> String {
    format!("remote=file://{}", folder.display())
}

pub(crate) fn cached(lines: &[Value]) -> Vec<u64> {
    lines.iter().map(|line| line["cached_tokens"].as_u64().unwrap()).collect()
}

/// Sum of a counter of one tier, as the line that ended last has it.
#[track_caller]
pub(crate) fn count(lines: &[Value], tier: &str, counter: &str) -> u64 {
    lines.iter().map(|line| line["tiers"][tier][counter].as_u64().unwrap()).max().unwrap()
}

/// A first process computes a prompt, a second one finds it by `spec`, alone and as the beginning of a longer one.
#[track_caller]
pub(crate) fn check_shared(environment: Environment<'_>, spec: &str, tier: &str) {
    let [common, more] = prompts([70, 30]);
    let longer = [&common[..], &more].concat();
    let both = [common.clone(), longer];
    let alone: Vec<Value> = both.iter().flat_map(|prompt| serve(std::slice::from_ref(prompt), &[])).collect();

    let serve =
        |prompt: &Vec<u32>| serve_in(environment, std::slice::from_ref(prompt), &["--kv-tiers", spec]);
    let first = serve(&common);
    assert_eq!((cached(&first), output_ids(&first)), (vec![0], output_ids(&alone[..1])));
    // 4 blocks of the prompt were looked up; 77 tokens with KV fill 4 blocks.
    assert_eq!([count(&first, tier, "hits"), count(&first, tier, "misses")], [0, 4]);
    assert!(count(&first, tier, "bytes_written") > 0);

    // One after the other, so that neither hits the device blocks of the other.
    for (prompt, alone) in both.iter().zip(&alone) {
        let second = serve(prompt);
        assert_eq!(cached(&second), [64], "{spec}");
        assert_eq!(output_ids(&second), output_ids(std::slice::from_ref(alone)), "{spec}");
        assert_eq!(count(&second, tier, "hits"), 4);
        assert!(count(&second, tier, "bytes_read") > 0 && second[0]["tiers"]["overlap"].is_number());
        let [predicted, used, late] = ["predicted", "used", "late"].map(|of| count(&second, "ahead", of));
        assert_eq!((predicted, used + late), (4, 4), "read while the request waits");
    }
}

#[test]
fn a_restarted_process_finds_its_disk_tier() {
    let folder = tempfile::tempdir().unwrap();
    check_shared(&[], &format!("host=1MiB,{}", disk(folder.path())), "disk");
}

#[test]
fn processes_share_a_directory() {
    let folder = tempfile::tempdir().unwrap();
    check_shared(&[], &directory(folder.path()), "remote");
}

#[test]
fn processes_share_a_redis() {
    let redis = Redis::start();
    check_shared(&[], &redis.spec(), "remote");
}

#[test]
fn half_the_bytes_on_disk_keep_the_first_tokens() {
    let [prompt] = prompts([70]);
    for compression in ["fp8", "int8"] {
        let folder = tempfile::tempdir().unwrap();
        let spec = format!("{},compress={compression}", disk(folder.path()));
        let first = serve(std::slice::from_ref(&prompt), &["--kv-tiers", &spec]);
        let second = serve(std::slice::from_ref(&prompt), &["--kv-tiers", &spec]);
        assert_eq!(cached(&second), [64]);
        // Rounded keys and values: close, not equal.
        assert_eq!(output_ids(&second)[0][0], output_ids(&first)[0][0], "{compression}");
    }
}

#[test]
fn a_conversation_goes_on_from_what_was_generated() {
    let [prompt] = prompts([40]);
    let folder = tempfile::tempdir().unwrap();
    let spec = disk(folder.path());
    let flags = ["--max-tokens", "30", "--kv-tiers", &spec];
    let generate = |prompt: &[u32]| {
        let file = ids_file(&prompt);
        run(tiny("generate").arg("--ids-file").arg(file.path()).args(flags)).remove(0)
    };
    let answer = crate::ids(&generate(&prompt)["output_ids"]);
    let [question] = prompts([5]);
    // The KV of 69 tokens was computed: all but the last one drawn.
    let turn = [&prompt[..], &answer, &question].concat();
    assert_eq!(generate(&turn)["cached_tokens"], 64);
}

#[test]
fn evicted_prefixes_come_back_from_the_host() {
    let [common, a, b, c] = prompts([96, 90, 90, 4]);
    let lists = [common.clone(), a, b, [&common[..], &c].concat()];
    let roomy = serve(&lists, &[]);
    // Nine blocks: each of the four prompts needs seven.
    let tight = |more: &[&str]| serve(&lists, &[&["--kv-blocks", "10"], more].concat());
    assert_eq!(cached(&tight(&[]))[3], 0, "the device kept the prefix");
    let kept = tight(&["--kv-tiers", "host=1MiB"]);
    assert_eq!(cached(&kept), [0, 0, 0, 96]);
    assert_eq!(output_ids(&kept), output_ids(&roomy));
    assert_eq!(count(&kept, "host", "hits"), 6);
}

#[test]
fn a_prompt_larger_than_the_device_pool_goes_through_a_ring() {
    let [long, short] = prompts([1200, 100]);
    let lists = [long.clone(), short];
    // 75 blocks for the long prompt; the device has 49, of which half are the ring.
    let tight = ["--kv-blocks", "49", "--kv-tiers", "host=16MiB"];
    let mut written = 0;
    for dtype in [&["--kv-dtype", "f32"][..], &["--reproducible"]] {
        let roomy = serve(&lists, dtype);
        let small = serve(&lists, &[&tight, dtype].concat());
        assert_eq!(output_ids(&small), output_ids(&roomy), "{dtype:?}");
        assert!(count(&small, "host", "bytes_read") > 0);
        // A request that does not need the host does not pay for it.
        let fits = serve(&lists[1..], &[&tight, dtype].concat());
        assert_eq!(count(&fits, "host", "bytes_read"), 0);
        written = count(&small, "host", "bytes_written");
    }
    // Of 80 full blocks of 6 KiB copies are kept for others; what lies on the host anyway is written beside.
    assert!(written > 80 * 6144, "{written}");
    // Ids do not depend on what reads memory of the host, kernels or copies.
    let staged = serve(&lists, &[&tight[..], &["--reproducible", "--no-host-buffers"]].concat());
    assert_eq!(output_ids(&staged), output_ids(&serve(&lists, &["--reproducible"])));
    // Either way whole blocks go there, as often as a step adds to them.
    let moved = |counter| count(&staged, "host", counter);
    assert!(moved("bytes_read") > 0 && moved("bytes_written") == written, "{:?}", staged[0]["tiers"]);
    let file = ids_file(&long);
    let score = |flags: &[&str]| {
        let mut score = tiny("score");
        run(score.arg("--ids-file").arg(file.path()).arg("--reproducible").args(flags)).remove(0)
    };
    assert_eq!(score(&tight)["mean_nll"], score(&[])["mean_nll"]);
}

#[test]
fn a_ring_and_a_disk_work_together() {
    let [long] = prompts([700]);
    let long = std::slice::from_ref(&long);
    let folder = tempfile::tempdir().unwrap();
    let spec = format!("host=16MiB,{}", disk(folder.path()));
    let tight = ["--reproducible", "--kv-blocks", "40", "--kv-tiers", &spec];
    let plain = serve(long, &["--reproducible"]);
    // Blocks come back into the ring's host memory, whatever it is.
    for (found, memory) in [(0, &[][..]), (688, &["--no-host-buffers"])] {
        let served = serve(long, &[&tight, memory].concat());
        assert_eq!((cached(&served), output_ids(&served)), (vec![found], output_ids(&plain)));
    }
}

#[test]
fn a_prompt_larger_than_device_and_host_goes_on_to_the_disk() {
    let [long, other, third] = prompts([1200, 60, 700]);
    // Two sequences share the first 1,184 tokens, of which blocks lie in all three places.
    let lists = [long.clone(), [&long[..1190], &other].concat()];
    let folder = tempfile::tempdir().unwrap();
    let spec = format!("host=300KiB,{}", disk(folder.path()));
    // 76 blocks of 6 KiB for a prompt: 22 stay on the device, and some 28 fit the host beside what is on its way.
    let tight = ["--kv-blocks", "44", "--chunk", "64", "--kv-tiers", &spec];
    let plain = ["--reproducible"];
    let roomy = serve(&lists, &plain);
    for (found, memory) in [(0, &[][..]), (1184, &["--no-host-buffers"])] {
        let served = serve(&lists, &[&tight, &plain[..], memory].concat());
        assert_eq!(output_ids(&served), output_ids(&roomy), "{memory:?}");
        assert_eq!(cached(&served)[0], found, "what was left of the disk keeps prefixes: {memory:?}");
        assert!(count(&served, "disk", "bytes_read") > 0 && count(&served, "disk", "errors") == 0);
    }
    // There is no room for both: who comes second waits, or is preempted with its blocks on disk, as time has it.
    let crowded = ["--kv-blocks", "44", "--chunk", "64", "--preempt", "swap", "--kv-tiers"];
    let spec = format!("host=240KiB,disk={}:500KiB", folder.path().join("small").display());
    let lists = [long.clone(), third];
    let served = serve(&lists, &[&crowded[..], &[&spec], &plain].concat());
    assert_eq!(output_ids(&served), output_ids(&serve(&lists, &plain)));
    // Neither device nor host nor disk: the numbers are told.
    let file = ids_file(&long);
    let refused_with = |spec: &str, flags: &[&str]| {
        let mut generate = tiny("generate");
        generate.arg("--ids-file").arg(file.path()).args(flags).args(["--kv-tiers", spec]);
        refused(&mut generate, 1)
    };
    let spec = format!("host=240KiB,disk={}:60KiB", folder.path().join("smaller").display());
    let said = refused_with(&spec, &["--kv-blocks", "44", "--chunk", "64"]);
    assert!(said.contains("blocks needed for 1455 tokens, the pool has"), "{said}");
    let spec = format!("host=60KiB,{}", disk(&folder.path().join("other")));
    let said = refused_with(&spec, &["--kv-blocks", "24", "--chunk", "512"]);
    assert!(said.contains("host tier of 61440 bytes") && said.contains("steps of 512 tokens need"), "{said}");
}

#[test]
fn selected_blocks_of_a_prompt_larger_than_the_pool_come_from_the_host() {
    let [long] = prompts([1000]);
    let long = std::slice::from_ref(&long);
    // 63 blocks for the prompt; of 27 blocks of three layers, the device has pages of 16 a layer, and two slots of 16.
    let tight = ["--kv-blocks", "27", "--kv-tiers", "host=16MiB"];
    for (spec, ahead) in [
        ("quest:page_budget=6,dense_layers=1", true),
        ("gsa:scoring=mean_k,sparse_ratio=0.2,block_size=16", true),
        ("gsa", false),
        ("esa:block_size=16", false),
    ] {
        let sparse = ["--reproducible", "--sparse", spec];
        let roomy = serve(long, &sparse);
        let small = serve(long, &[&tight[..], &sparse].concat());
        assert_eq!(output_ids(&small), output_ids(&roomy), "{spec}");
        assert_eq!(small[0]["sparse"], roomy[0]["sparse"], "{spec}");
        let [hits, misses, prefetched] =
            ["hits", "misses", "prefetched"].map(|counter| count(&small, "device", counter));
        assert!(hits > 0 && misses > 0 && ahead == (prefetched > 0), "{spec}: {:?}", small[0]["tiers"]);
        // A page is K and V of 16 tokens and 16 elements of f16.
        let read = count(&small, "host", "bytes_read");
        assert!(read >= (misses + prefetched) * 2 * 16 * 16 * 2, "{spec}: {:?}", small[0]["tiers"]);
        let (wait, overlap) = (&small[0]["tiers"]["device"]["wait_ms"], &small[0]["tiers"]["overlap"]);
        assert_eq!(wait.is_number(), overlap.is_number());
        assert!(overlap.as_f64().is_none_or(|hidden| (0.0..=1.0).contains(&hidden)));
    }
}

#[test]
fn selected_blocks_and_a_disk_work_together() {
    let [long] = prompts([1000]);
    let long = std::slice::from_ref(&long);
    let folder = tempfile::tempdir().unwrap();
    let spec = format!("host=16MiB,{}", disk(folder.path()));
    let sparse = ["--reproducible", "--sparse", "quest:page_budget=6,dense_layers=0"];
    let plain = serve(long, &sparse);
    for found in [0, 992] {
        let served = serve(long, &[&["--kv-blocks", "48", "--kv-tiers", &spec], &sparse[..]].concat());
        assert_eq!((cached(&served), output_ids(&served)), (vec![found], output_ids(&plain)));
    }
}

#[test]
fn pools_that_are_too_small_for_a_ring_are_refused() {
    let [long] = prompts([700]);
    let file = ids_file(&long);
    let tight = |blocks: &str, spec: &str| {
        let mut generate = tiny("generate");
        generate.arg("--ids-file").arg(file.path()).args(["--kv-blocks", blocks, "--kv-tiers", spec]);
        refused(&mut generate, 1)
    };
    let said = tight("11", "host=16MiB");
    assert!(said.contains("device pool of 11 KV blocks") && said.contains("needs 12"), "{said}");
    // With a policy it needs a partition of selected pages too.
    let mut selects = tiny("generate");
    selects.arg("--ids-file").arg(file.path()).args(["--kv-blocks", "26", "--kv-tiers", "host=16MiB"]);
    let said = refused(selects.args(["--sparse", "quest"]), 1);
    assert!(said.contains("device pool of 26 KV blocks") && said.contains("needs 27"), "{said}");
    // The host tier is a bound too: 10 blocks of 6 KiB.
    let said = tight("24", "host=60KiB");
    assert!(said.contains("prompt 0") && said.contains("blocks"), "{said}");
}

#[test]
fn scored_prefixes_are_found_by_generate() {
    let [prompt] = prompts([70]);
    let folder = tempfile::tempdir().unwrap();
    let (file, spec) = (ids_file(&prompt), disk(folder.path()));
    let score = |flags: &[&str]| run(tiny("score").arg("--ids-file").arg(file.path()).args(flags)).remove(0);
    let scored = score(&["--kv-tiers", &spec]);
    assert_eq!(scored["mean_nll"], score(&[])["mean_nll"]);
    assert!(count(&[scored], "disk", "bytes_written") > 0);
    assert_eq!(cached(&serve(&[prompt], &["--kv-tiers", &spec])), [64]);
}

#[test]
fn salts_policies_and_the_order_of_arithmetic_keep_blocks_apart() {
    let [prompt] = prompts([70]);
    let folder = tempfile::tempdir().unwrap();
    let spec = disk(folder.path());
    let serve =
        |flags: &[&str]| serve(std::slice::from_ref(&prompt), &[&["--kv-tiers", &spec], flags].concat());
    for flags in [&[][..], &["--salt", "tenant"], &["--reproducible"], &["--sparse", "streaming"]] {
        assert_eq!(cached(&serve(flags)), [0], "{flags:?}");
        assert_eq!(cached(&serve(flags)), [64], "{flags:?}");
    }
}

#[test]
fn blocks_of_something_else_are_refused_or_not_seen() {
    let [prompt] = prompts([70]);
    let (own, shared) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (own, shared) = (disk(own.path()), directory(shared.path()));
    serve(std::slice::from_ref(&prompt), &["--kv-tiers", &format!("{own},{shared}")]);

    // The same model but for one bit of its weights.
    let other = tempfile::tempdir().unwrap();
    for file in fs::read_dir(tiny_llama()).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), other.path().join(file.file_name())).unwrap();
    }
    let weights = other.path().join("model.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&weights, bytes).unwrap();

    let file = ids_file(&prompt);
    let model = |path: &Path, spec: &str, flags: &[&str]| {
        let mut generate = xtask("generate");
        generate.arg("--model").arg(path).arg("--ids-file").arg(file.path());
        generate.args(["--max-tokens", "8", "--kv-tiers", spec]).args(flags);
        generate
    };
    let same = tiny_llama();
    for (path, flags, held, wanted) in [
        (&same, &["--kv-dtype", "f32"][..], "F16 there", "F32 here"),
        (&same, &["--block-size", "32"], "blocks of 16 tokens there", "blocks of 32 tokens here"),
        (&other.path().to_owned(), &[], "disk tier holds", "place of their own"),
    ] {
        let said = refused(&mut model(path, &own, flags), 1);
        assert!(said.contains(held) && said.contains(wanted), "{flags:?}: {said}");
        assert_eq!(cached(&run(&mut model(path, &shared, flags))), [0], "{flags:?}");
    }
}

#[test]
fn a_disk_tier_is_written_by_one_process() {
    let folder = tempfile::tempdir().unwrap();
    let layout = BlockLayout::new(1, 64).unwrap();
    let _held = DiskTier::open(DiskConfig::new(folder.path(), layout, "another process", 1 << 20)).unwrap();
    let [prompt] = prompts([20]);
    let file = ids_file(&prompt);
    let spec = disk(folder.path());
    let said = refused(tiny("generate").arg("--ids-file").arg(file.path()).args(["--kv-tiers", &spec]), 1);
    assert!(said.contains(&format!("--kv-tiers {spec}")) && said.contains("already open"), "{said}");
}

#[test]
fn specs_that_cannot_be() {
    let [prompt] = prompts([20]);
    let file = ids_file(&prompt);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().display();
    let huge = format!("disk={path}:1000000TiB");
    let missing = format!("remote=file://{path}/missing");
    // A version to come writes its own number there.
    let newer = tempfile::tempdir().unwrap();
    fs::write(newer.path().join("format"), "KV blocks of format 2").unwrap();
    let newer_spec = directory(newer.path());
    let no_directory = format!("disk={}:1MiB", file.path().display());
    // Nothing listens on the port that a stopped server had.
    let stopped = Redis::start().spec();
    for (spec, code, parts) in [
        ("tape=1GiB", 2, &["unknown tier key `tape`"][..]),
        ("host=0", 2, &["size `0` of host", "positive"]),
        (&format!("disk={path}:0GiB"), 2, &["size `0GiB` of disk"]),
        ("failure=retry,host=1MiB", 2, &["unknown failure policy `retry`"]),
        ("host=1KiB", 1, &["host tier of 1024 bytes", "block of"]),
        ("compress=fp8", 1, &["at least one tier"]),
        (&huge, 1, &["disk tier of", "whose file system has"]),
        (&missing, 1, &["remote tier cannot use the directory", "missing"]),
        (&no_directory, 1, &["disk tier cannot use the directory"]),
        (&newer_spec, 1, &["KV blocks of format 2 there, KV blocks of format 1 here"]),
        (&stopped, 1, &["remote tier", "looking for the store"]),
        #[cfg(not(feature = "s3"))]
        ("remote=s3://bucket", 1, &["remote tier needs the feature `s3`, which this build lacks"]),
    ] {
        let mut generate = tiny("generate");
        let said = refused(generate.arg("--ids-file").arg(file.path()).args(["--kv-tiers", spec]), code);
        for part in parts {
            assert!(said.contains(part), "{spec} does not say {part:?}: {said}");
        }
    }
    let mut generate = tiny("generate");
    generate.arg("--ids-file").arg(file.path()).args(["--kv-dtype", "f32"]);
    let said = refused(generate.args(["--kv-tiers", "host=1MiB,compress=int8"]), 1);
    assert!(said.contains("compression halves f16 elements"), "{said}");
}

#[test]
fn a_policy_of_decode_takes_prompts_from_any_other_one() {
    let [prompt] = prompts([200]);
    let folder = tempfile::tempdir().unwrap();
    let spec = disk(folder.path());
    let one = |prompt: &[u32], flags: &[&str]| serve(&[prompt.to_vec()], flags);
    let tiered = |prompt: &[u32], flags: &[&str]| one(prompt, &[&["--kv-tiers", &spec], flags].concat());
    let quest = ["--reproducible", "--sparse", "quest:page_budget=4,dense_layers=0"];
    let esa = ["--reproducible", "--sparse", "esa:block_size=16"];
    let dense = ["--reproducible"];
    assert_eq!(cached(&tiered(&prompt, &dense)), [0]);
    let mut answers = Vec::new();
    for flags in [&quest[..], &esa] {
        let (alone, found) = (one(&prompt, flags), tiered(&prompt, flags));
        assert_eq!((cached(&found), output_ids(&found)), (vec![192], output_ids(&alone)), "{flags:?}");
        answers.push(output_ids(&found));
    }
    assert_ne!(answers[0], answers[1], "the policies select alike, so this says nothing");
    // Policies of prefill compute other keys and values.
    for flags in
        [["--reproducible", "--sparse", "streaming:block_size=16"], ["--reproducible", "--sparse", "xattn"]]
    {
        assert_eq!(cached(&tiered(&prompt, &flags)), [0], "{flags:?}");
    }
    // Without `--reproducible` rows are summed in another order.
    assert_eq!(cached(&tiered(&prompt, &quest[1..])), [0]);
}

#[test]
fn what_a_policy_generated_is_found_with_this_policy_only() {
    let [prompt, question] = prompts([200, 5]);
    let folder = tempfile::tempdir().unwrap();
    let spec = disk(folder.path());
    let generate = |prompt: &[u32], flags: &[&str]| {
        let file = ids_file(&prompt);
        let mut generate = tiny("generate");
        generate.arg("--ids-file").arg(file.path()).args(["--max-tokens", "30", "--reproducible"]);
        run(generate.args(["--kv-tiers", &spec]).args(flags)).remove(0)
    };
    let quest = ["--sparse", "quest:page_budget=4,dense_layers=0"];
    let answer = crate::ids(&generate(&prompt, &quest)["output_ids"]);
    // 229 tokens with keys and values: 12 blocks of the prompt, 2 with generated tokens. Another policy computes these again as
    // a part of a prompt, so dense attention finds all of them.
    let turn = [&prompt[..], &answer, &question].concat();
    let other = ["--sparse", "quest:page_budget=5,dense_layers=0"];
    for (flags, found) in [(&quest[..], 224), (&other, 192), (&[], 224)] {
        assert_eq!(generate(&turn, flags)["cached_tokens"], found, "{flags:?}");
    }
}
