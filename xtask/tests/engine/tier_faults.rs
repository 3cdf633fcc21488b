//! Faults of tiers while the tiny Llama serves: no wrong token, no hang, and somebody is told.

use std::env;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use std::{slice, thread};

use serde_json::Value;

use crate::redis::Redis;
use crate::tiers::{cached, count, disk, serve};
use crate::{ids_file, output_ids, prompts, run, text, tiny};

/// Every file below `folder` whose name fits, in order.
fn files(folder: &Path, fits: &dyn Fn(&str) -> bool) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        match entry.file_type().unwrap().is_dir() {
            true => found.extend(files(&entry.path(), fits)),
            false if fits(entry.file_name().to_str().unwrap()) => found.push(entry.path()),
            false => {}
        }
    }
    found.sort();
    found
}

/// Generates as [`serve`] does, but waits for nothing.
fn start(lists: &[Vec<u32>], flags: &[&str]) -> (Child, tempfile::NamedTempFile) {
    start_long(lists, "8", flags)
}

fn start_long(lists: &[Vec<u32>], max_tokens: &str, flags: &[&str]) -> (Child, tempfile::NamedTempFile) {
    let file = ids_file(&lists);
    let mut generate = tiny("generate");
    generate.arg("--ids-file").arg(file.path()).args(["--max-tokens", max_tokens]).args(flags);
    let child = generate.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    (child, file)
}

/// The lines of a process that must end well.
#[track_caller]
fn lines(child: Child) -> (Vec<Value>, String) {
    ended(child, 0)
}

/// The lines of a process that ends with `code`, and what it said.
fn ended(child: Child, code: i32) -> (Vec<Value>, String) {
    let output = child.wait_with_output().unwrap();
    let said = text(&output.stderr).to_string();
    assert_eq!(output.status.code(), Some(code), "{said}");
    let mut lines: Vec<Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    lines.sort_by_key(|line| line["index"].as_u64());
    (lines, said)
}

fn signal(child: &Child, signal: &str) {
    let sent = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

#[test]
fn bad_copies_on_disk_are_computed_again() {
    let [prompt] = prompts([70]);
    let prompt = slice::from_ref(&prompt);
    let slots = |file: &Path| {
        let mut bytes = fs::read(file).unwrap();
        // A slot is two pages, one block; the third that was saved.
        bytes[2 * 8192 + 100] ^= 4;
        fs::write(file, bytes).unwrap();
    };
    let cut = |file: &Path| fs::OpenOptions::new().write(true).open(file).unwrap().set_len(20_000).unwrap();
    let damages: [&dyn Fn(&Path); 2] = [&slots, &cut];
    for damage in damages {
        let folder = tempfile::tempdir().unwrap();
        let spec = format!("{},failure=fail", disk(folder.path()));
        // Blocks that are saved together take slots in any order: two blocks, then the third, then the others.
        for saved in [33, 49] {
            serve(&[prompt[0][..saved].to_vec()], &["--kv-tiers", &spec]);
        }
        let first = serve(prompt, &["--kv-tiers", &spec]);
        let slab = files(folder.path(), &|name| name.ends_with(".kv"));
        damage(&slab[0]);

        let (child, _file) = start(prompt, &["--kv-tiers", &spec]);
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1), "a request with a bad block ended well");
        let ended: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&ended["finish_reason"], &ended["output_ids"]), (&"error".into(), &Value::Array(vec![])));
        let said = text(&output.stderr);
        assert!(said.contains("KV from token 32 on") && said.contains("disk tier"), "{said}");

        // A copy that cannot be read is gone with its first read, and written again.
        let (child, _file) = start(prompt, &["--kv-tiers", &disk(folder.path())]);
        let (again, said) = lines(child);
        assert_eq!(output_ids(&again), output_ids(&first), "{said}");
        assert_eq!(cached(&again), [32], "{said}");
        let healed = serve(prompt, &["--kv-tiers", &disk(folder.path())]);
        assert_eq!((output_ids(&healed), cached(&healed)), (output_ids(&first), vec![64]));
    }
}

#[test]
fn unreadable_objects_are_computed_again() {
    let [prompt] = prompts([70]);
    let prompt = slice::from_ref(&prompt);
    let folder = tempfile::tempdir().unwrap();
    let spec = format!("remote=file://{}", folder.path().display());
    let first = serve(prompt, &["--kv-tiers", &spec]);
    let objects = files(folder.path(), &|name| name != "format");
    assert_eq!(objects.len(), 4);
    for object in &objects {
        fs::write(object, b"not a block").unwrap();
    }
    let (child, _file) = start(prompt, &["--kv-tiers", &spec]);
    let (again, said) = lines(child);
    assert_eq!((cached(&again), output_ids(&again)), (vec![0], output_ids(&first)));
    assert!(count(&again, "remote", "errors") > 0 && said.contains("corrupt"), "{said}");
}

#[test]
fn a_slow_store_costs_time_only() {
    let redis = Redis::start();
    let [prompt, other] = prompts([70, 40]);
    let spec = redis.spec();
    let first = serve(slice::from_ref(&prompt), &["--kv-tiers", &spec]);
    redis.command("CLIENT PAUSE 1500 ALL").unwrap();
    let both = serve(&[prompt, other.clone()], &["--kv-tiers", &spec]);
    assert_eq!(cached(&both), [64, 0]);
    assert_eq!(output_ids(&both), [output_ids(&first), output_ids(&serve(&[other], &[]))].concat());
}

#[test]
fn a_store_that_dies_and_comes_back_is_used_again() {
    let redis = Redis::start();
    let (port, spec) = (redis.port, redis.spec());
    // More than is done before the end, so that requests start before the store dies, while it is away, and after it came
    // back.
    let lists = prompts([90; 600]);
    let flags = ["--reproducible", "--kv-tiers", &spec];
    // Room for one sequence at a time.
    let (mut child, _file) = start_long(&lists, "40", &[&flags[..], &["--kv-blocks", "11"]].concat());
    let (tell, told) = mpsc::channel();
    let mut errors = BufReader::new(child.stderr.take().unwrap()).lines();
    thread::spawn(move || errors.try_for_each(|line| tell.send(line.unwrap())));
    until("a prompt is saved", || redis.number("DBSIZE", ":") > 5);
    drop(redis);
    until("somebody is told", || told.try_recv().is_ok_and(|line| line.contains("remote tier")));
    let back = Redis::start_on(port).expect("the port is free again");
    // The one of before is empty: what is there was saved since. A prompt and its output are 8 blocks.
    until("three prompts are saved", || back.number("DBSIZE", ":") > 2 * 8);
    signal(&child, "-INT");
    // So many requests were left that it did not end by itself.
    let (served, _) = ended(child, 130);
    let whole: Vec<Value> = served.into_iter().filter(|line| line["finish_reason"] == "length").collect();
    let list = |line: &Value| lists[usize::try_from(line["index"].as_u64().unwrap()).unwrap()].clone();
    let whole_lists: Vec<_> = whole.iter().map(list).collect();
    let (plain, _) = lines(start_long(&whole_lists, "40", &["--reproducible"]).0);
    assert_eq!(output_ids(&whole), output_ids(&plain));

    assert_eq!(output_ids(&serve(&whole_lists[..2], &flags)), short(&plain[..2]));
    let found = serve(&whole_lists[..2], &flags);
    assert_eq!((cached(&found), output_ids(&found)), (vec![80; 2], short(&plain[..2])));
}

/// The first 8 tokens of each line.
fn short(lines: &[Value]) -> Vec<Vec<u32>> {
    output_ids(lines).into_iter().map(|ids| ids[..8].to_vec()).collect()
}

#[test]
fn a_full_disk_keeps_what_fits() {
    let lists = prompts([2000, 2000]);
    let folder = tempfile::tempdir().unwrap();
    let file = ids_file(&lists);
    let spec = disk(folder.path());
    let generate = || {
        let mut generate = tiny("generate");
        generate.arg("--ids-file").arg(file.path()).args(["--max-tokens", "8", "--block-size", "4"]);
        generate.args(["--kv-tiers", &spec]);
        generate
    };
    // No file grows beyond 2 MiB: the index fits, a slab holds 512 of about 1000 blocks.
    let mut limited = Command::new("sh");
    limited.arg("-c").arg("trap '' XFSZ; ulimit -f 4096; exec \"$0\" \"$@\"");
    limited.arg(generate().get_program()).args(generate().get_args());
    limited.envs(generate().get_envs().filter_map(|(name, value)| Some((name, value?))));
    let child = limited.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (full, said) = lines(child);
    assert!(said.contains("saving blocks") && count(&full, "disk", "errors") > 0, "{said}");
    let after = run(&mut generate());
    assert_eq!(output_ids(&after), output_ids(&full));
    assert!(cached(&after)[0] > 0, "nothing was kept");
}

#[test]
#[cfg(unix)]
fn a_request_whose_blocks_the_disk_does_not_take_ends_alone() {
    let [long, short] = prompts([1200, 100]);
    let folder = tempfile::tempdir().unwrap();
    // The short one comes first, and has blocks on the device.
    let file = ids_file(&[short.clone(), long]);
    let spec = format!("host=300KiB,{}", disk(folder.path()));
    let mut generate = tiny("generate");
    generate.arg("--ids-file").arg(file.path()).args(["--max-tokens", "8", "--reproducible"]);
    generate.args(["--kv-blocks", "44", "--chunk", "64", "--kv-tiers", &spec]);
    // No file grows beyond 256 KiB: keys and values of the first layer fit, those of the last do not.
    let mut limited = Command::new("sh");
    limited.arg("-c").arg("trap '' XFSZ; ulimit -f 512; exec \"$0\" \"$@\"");
    limited.arg(generate.get_program()).args(generate.get_args());
    limited.envs(generate.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let child = limited.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (served, said) = ended(child, 1);
    assert_eq!(
        (&served[1]["finish_reason"], &served[1]["output_ids"]),
        (&"error".into(), &Value::Array(vec![]))
    );
    let told = [
        "request-1: KV from token",
        "KV block",
        "spill-",
        "cannot be written",
        "too large",
        "the request ends",
    ];
    assert!(told.iter().all(|part| said.contains(part)), "{said}");
    let alone = serve(&[short], &["--reproducible"]);
    assert_eq!(output_ids(&served[..1]), output_ids(&alone));
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_file_system_keeps_what_fits() {
    // In a mount namespace of its own, 3 MiB are left for an index and 4 MiB of blocks, then 17 MiB more.
    let script = r#"mount -t tmpfs -o size=20m,mode=700 none "$0" && head -c 17M /dev/zero > "$0/filler" &&
        "$@" && rm "$0/filler" && "$@""#;
    let namespace = ["--mount", "--map-root-user"];
    if !Command::new("unshare").args(namespace).arg("true").status().is_ok_and(|status| status.success()) {
        eprintln!("no mount namespace here: only `ulimit` tells of full disks");
        return;
    }
    let lists = prompts([2000, 2000]);
    let (folder, file) = (tempfile::tempdir().unwrap(), ids_file(&lists));
    let mut generate = tiny("generate");
    generate.arg("--ids-file").arg(file.path()).args(["--max-tokens", "8", "--block-size", "4"]);
    generate.args(["--kv-tiers", &disk(folder.path())]);
    let mut both = Command::new("unshare");
    both.args(namespace).args(["sh", "-c", script]).arg(folder.path());
    both.arg(generate.get_program()).args(generate.get_args());
    let output = both.output().unwrap();
    let said = text(&output.stderr);
    assert!(output.status.success() && said.contains("saving blocks"), "{said}");
    let mut lines: Vec<Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let (full, after) = lines.split_at_mut(2);
    for run in [&mut *full, &mut *after] {
        run.sort_by_key(|line| line["index"].as_u64());
    }
    assert_eq!(output_ids(full), output_ids(after));
    assert!(count(full, "disk", "errors") > 0 && count(after, "disk", "errors") == 0, "{said}");
    assert!(cached(after)[0] > 0, "nothing was kept");
}

#[test]
fn an_interrupt_ends_requests_whose_blocks_are_under_way() {
    let redis = Redis::start();
    let lists = prompts([90; 6]);
    let spec = redis.spec();
    serve(&lists, &["--kv-tiers", &spec]);
    let lookups = || redis.number("INFO commandstats", "cmdstat_exists:calls=");
    let before = lookups();
    let (child, _file) = start_long(&lists, "3000", &["--kv-tiers", &spec]);
    // Ctrl-C is listened for before prompts are looked up, which is 30 blocks; opening the tier looks for one object.
    until("prompts are looked up", || lookups() > before + 5);
    redis.command("CLIENT PAUSE 3600000 ALL").unwrap();
    signal(&child, "-INT");
    // A request to the store is given up after 5 s, twice; lookup, load and save can each be in one.
    let (end, came) = mpsc::channel();
    thread::spawn(move || end.send(ended(child, 130)));
    let (lines, said) =
        came.recv_timeout(Duration::from_secs(120)).expect("it ends well, and the store hangs");
    assert_eq!(lines.len(), 6, "{said}");
    assert!(lines.iter().all(|line| line["finish_reason"] == "abort"), "{lines:?}");
}

#[test]
fn sigterm_ends_a_run_as_ctrl_c_does() {
    let lists = prompts([40; 2]);
    let folder = tempfile::tempdir().unwrap();
    let (child, _file) = start_long(&lists, "3000", &["--kv-tiers", &disk(folder.path())]);
    // Blocks are saved by steps, before which signals are listened for.
    let slab = folder.path().join("slab-0000.kv");
    until("blocks are saved", || fs::metadata(&slab).is_ok_and(|slab| slab.len() > 0));
    signal(&child, "-TERM");
    let (lines, said) = ended(child, 130);
    assert_eq!(lines.len(), 2, "{said}");
    assert!(lines.iter().all(|line| line["finish_reason"] == "abort"), "{lines:?}");
}

#[test]
fn a_process_killed_while_it_writes_leaves_whole_blocks() {
    let lists = prompts([300; 4]);
    let plain = serve(&lists, &["--block-size", "4"]);
    let (folder, shared) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let disk = format!("disk={}:4MiB", folder.path().display());
    let all = format!("host=1MiB,{disk},remote=file://{}", shared.path().display());
    let slab = folder.path().join("slab-0000.kv");
    let rounds = env::var("PAGODA_KILL_ROUNDS").map_or(8, |rounds| rounds.parse().unwrap());
    let mut found = 0;
    for round in 0..rounds {
        // Long runs also have tiers above and below.
        let spec = if round < 8 { &disk } else { &all };
        // Another salt fills the disk tier with other blocks each time, and then takes the place of the first ones.
        let salt = round.to_string();
        let flags = ["--kv-tiers", spec, "--salt", &salt, "--block-size", "4"];
        let written = || fs::metadata(&slab).and_then(|slab| slab.modified()).ok();
        let before = written();
        let (mut child, _file) = start(&lists, &flags);
        until("blocks are written", || written() != before);
        thread::sleep(Duration::from_millis(round * 3 % 101));
        child.kill().unwrap();
        child.wait().unwrap();
        let served = serve(&lists, &flags);
        assert_eq!(output_ids(&served), output_ids(&plain), "round {round}");
        assert_eq!(count(&served, "disk", "errors"), 0, "round {round}");
        found += cached(&served).iter().sum::<u64>();
    }
    // How much survives depends on the machine's speed.
    eprintln!("{rounds} kills: {found} of {} tokens survived", rounds * 4 * 296);
}

#[track_caller]
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < Duration::from_secs(60), "waiting in vain until {what}");
        thread::sleep(Duration::from_millis(2));
    }
}
