use std::fs;

use clap::error::ErrorKind;
use insta::assert_snapshot;
use pagoda::{IndexDtype, KvDtype, Preemption};

use super::*;

fn parse(args: &[&str]) -> Result<Cli, clap::Error> {
    Cli::try_parse_with(&Registry::builtin(), ["pagoda"].iter().chain(args))
}

fn run(args: &[&str]) -> GenerateArgs {
    match parse(&[&["run", "--prompt", "hi"], args].concat()).unwrap().command {
        Command::Run(args) => *args,
        other => panic!("parsed {other:?} instead of run"),
    }
}

/// The first paragraph of the message that refuses `args`; exit code 2 is checked on the way.
fn refusal(args: &[&str]) -> String {
    let error = parse(args).expect_err(&format!("{args:?} was accepted"));
    assert_eq!(error.exit_code(), 2, "{args:?}: {error}");
    error.to_string().split("\n\n").next().unwrap().to_string()
}

fn refused_value(flag: &str, value: &str) -> String {
    refusal(&["run", "--prompt", "hi", flag, value])
}

#[test]
fn the_command_definition_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn run_defaults() {
    let args = run(&[]);
    assert_eq!(args.prompt, ["hi"]);
    assert_eq!((args.n, args.max_tokens, args.preempt), (1, 256, Preemption::Recompute));
    let sampling = &args.sampling;
    assert_eq!((sampling.temperature, sampling.top_k, sampling.top_p), (None, None, None));
    assert_eq!((sampling.min_p, sampling.seed), (None, 0));
    let engine = &args.engine;
    assert_eq!((engine.kv_dtype, engine.block_size, engine.chunk), (KvDtype::F16, 16, 2048));
    assert_eq!((&engine.model, &engine.kv_tiers), (&None, &None));
    assert!(engine.sparse.is_none());
}

#[test]
fn every_flag_of_run_is_read() {
    let text = "--raw --max-tokens 7 --temperature 0.5 --top-k 40 --top-p 0.9 --min-p 0.05 --seed 11 --n 3 \
                --salt s --stop X --stop --y --preempt swap --json --model m --sparse quest:page_budget=8,block_size=16 \
                --kv-dtype int8 --index-dtype fp8 --block-size 32 --kv-blocks 64 --kv-memory 2MiB --chunk 128 --reproducible \
                --weights-on-gpu 3GiB \
                --kv-tiers host=1GiB --device llvm --no-host-buffers --no-coop --no-async-scheduling --prompt -5+3?";
    let args = run(&text.split_whitespace().collect::<Vec<_>>());
    assert_eq!(args.prompt, ["hi", "-5+3?"]);
    assert_eq!(args.stop, ["X", "--y"]);
    assert_eq!((args.raw, args.json, args.max_tokens, args.n), (true, true, 7, 3));
    assert_eq!((args.salt.as_deref(), args.preempt), (Some("s"), Preemption::Swap));
    let sampling = &args.sampling;
    assert_eq!((sampling.temperature, sampling.top_k, sampling.top_p), (Some(0.5), Some(40), Some(0.9)));
    assert_eq!((sampling.min_p, sampling.seed), (Some(0.05), 11));
    let engine = &args.engine;
    assert_eq!(
        engine.sparse.as_ref().map(|sparse| sparse.to_string()).as_deref(),
        Some("quest:page_budget=8,block_size=16")
    );
    assert_eq!((engine.kv_dtype, engine.block_size, engine.chunk), (KvDtype::Int8, 32, 128));
    assert_eq!(engine.index_dtype, Some(IndexDtype::Fp8));
    assert_eq!((engine.kv_blocks, engine.kv_memory), (Some(64), Some(2 << 20)));
    assert_eq!(engine.weights_on_gpu, Some(3 << 30));
    assert_eq!(
        (engine.device.as_deref(), engine.kv_tiers.as_ref().and_then(|tiers| tiers.host_bytes)),
        (Some("llvm"), Some(1 << 30))
    );
    assert!(engine.reproducible && engine.no_coop && !engine.gpu().host_buffers);
    assert!(engine.no_async_scheduling);
}

fn serve(args: &[&str]) -> ServeArgs {
    match parse(&[&["serve"], args].concat()).unwrap().command {
        Command::Shared(Shared::Serve(args)) => *args,
        other => panic!("parsed {other:?} instead of serve"),
    }
}

#[test]
fn a_refused_value_is_told_with_flag_value_and_limit() {
    let refused = [
        ("--max-tokens", "0"),
        ("--n", "0"),
        ("--n", "4294967295"),
        ("--temperature", "-1"),
        ("--temperature", "inf"),
        ("--top-k", "-1"),
        ("--top-p", "0"),
        ("--top-p", "1.5"),
        ("--top-p", "NaN"),
        ("--min-p", "-0.1"),
        ("--seed", "-1"),
        ("--kv-dtype", "f64"),
        ("--block-size", "24"),
        ("--block-size", "2"),
        ("--block-size", "512"),
        ("--block-size", "x"),
        ("--kv-blocks", "1"),
        ("--kv-memory", "0"),
        ("--kv-memory", "20000000000GiB"),
        ("--chunk", "0"),
        ("--sparse", "quest:8"),
        ("--sparse", "quest:page_budget=-1"),
        ("--kv-tiers", "tape=1GiB"),
        ("--kv-tiers", "host=0"),
        ("--kv-tiers", "remote=redis://anna:s3cret@h:1/0"),
        ("--kv-tiers", "mac=00112233445566778899aabbccddeeff"),
        ("--stop", ""),
        ("--preempt", "abort"),
        ("--random", "llama-3-9b"),
        ("--random", "llama-3-8b:q9_k"),
        ("--random", "llama-3-8b:q4_k,layers=99"),
        ("--random", "llama-3-8b:q4_k,width=8"),
    ];
    let told = refused.map(|(flag, value)| refused_value(flag, value)).join("\n");
    assert_snapshot!(told, @r#"
    error: invalid value '0' for '--max-tokens <N>': 0 is not in 1..=4294967295
    error: invalid value '0' for '--n <N>': 0 is not in 1..=256
    error: invalid value '4294967295' for '--n <N>': 4294967295 is not in 1..=256
    error: invalid value '-1' for '--temperature <T>': a temperature is a finite number from 0 up
    error: invalid value 'inf' for '--temperature <T>': a temperature is a finite number from 0 up
    error: invalid value '-1' for '--top-k <N>': -1 is not in 0..=4294967295
    error: invalid value '0' for '--top-p <P>': top-p is more than 0 and at most 1
    error: invalid value '1.5' for '--top-p <P>': top-p is more than 0 and at most 1
    error: invalid value 'NaN' for '--top-p <P>': top-p is more than 0 and at most 1
    error: invalid value '-0.1' for '--min-p <P>': min-p is from 0 to 1
    error: invalid value '-1' for '--seed <N>': a seed is a whole number from 0 to 18446744073709551615
    error: invalid value 'f64' for '--kv-dtype <TYPE>'
      [possible values: f32, f16, fp8, int8]
    error: invalid value '24' for '--block-size <N>': a block holds a power of two of tokens, from 4 to 256
    error: invalid value '2' for '--block-size <N>': a block holds a power of two of tokens, from 4 to 256
    error: invalid value '512' for '--block-size <N>': a block holds a power of two of tokens, from 4 to 256
    error: invalid value 'x' for '--block-size <N>': x is not a whole number; a block holds a power of two of tokens, from 4 to 256
    error: invalid value '1' for '--kv-blocks <N>': 1 is not in 2..=4294967295
    error: invalid value '0' for '--kv-memory <BYTES>': give whole bytes from 1 to 2^64 - 1, or whole KiB, MiB or GiB (KB, MB, GB), such as 512MiB
    error: invalid value '20000000000GiB' for '--kv-memory <BYTES>': give whole bytes from 1 to 2^64 - 1, or whole KiB, MiB or GiB (KB, MB, GB), such as 512MiB
    error: invalid value '0' for '--chunk <N>': 0 is not in 1..=4294967295
    error: invalid value 'quest:8' for '--sparse <SPEC>': quest: expected key=value, found "8"
    error: invalid value 'quest:page_budget=-1' for '--sparse <SPEC>': quest: page_budget = "-1" is not a count of at least 1
    error: invalid value 'tape=1GiB' for '--kv-tiers <SPEC>': unknown tier key `tape`; keys are host, disk, remote, mac, tenant, compress, failure
    error: invalid value 'host=0' for '--kv-tiers <SPEC>': size `0` of host is not a positive number of bytes with one of the units B, KB, KiB, MB, MiB, GB, GiB, TB, TiB
    error: wrong value for '--kv-tiers <SPEC>': the URL of a Redis server holds a user or a password; set REDIS_USERNAME and REDIS_PASSWORD, or REDIS_PASSWORD_FILE, instead
    error: wrong value for '--kv-tiers <SPEC>': mac is not of the form file:PATH or env:NAME
    error: invalid value '' for '--stop <TEXT>': the text is empty; give at least one character
    error: invalid value 'abort' for '--preempt <MODE>'
      [possible values: recompute, swap]
    error: invalid value 'llama-3-9b' for '--random <SHAPE[:TYPE][,layers=N]>': unknown shape "llama-3-9b"; shapes are deepseek-v3-small gpt-oss-20b llama-3-70b llama-3-8b llama-3.2-1b mistral-7b phi-3.5-mini qwen2.5-14b qwen2.5-3b qwen3-30b-a3b qwen3-8b smollm2-135m tiny-llama tiny-moe, and RON files by path
    error: invalid value 'llama-3-8b:q9_k' for '--random <SHAPE[:TYPE][,layers=N]>': unknown type "q9_k"; types are f32 f16 bf16 q4_0 q4_1 q5_0 q5_1 q8_0 q2_k q3_k q4_k q5_k q6_k iq4_nl iq4_xs mxfp4 f8_e4m3
    error: invalid value 'llama-3-8b:q4_k,layers=99' for '--random <SHAPE[:TYPE][,layers=N]>': layers=99: llama-3-8b has 1 to 32
    error: invalid value 'llama-3-8b:q4_k,width=8' for '--random <SHAPE[:TYPE][,layers=N]>': unknown key "width"; keys are layers context seed alike
    "#);
}

#[test]
fn an_unknown_policy_or_key_is_told_with_the_valid_ones() {
    assert!(refused_value("--sparse", "guess").contains("valid names: full "));
    assert!(refused_value("--sparse", "quest:pages=8").contains("valid keys: page_budget "));
}

#[test]
fn a_random_model_takes_the_place_of_a_model() {
    let engine = run(&["--random", "llama-3-8b:q4_k,layers=2"]).engine;
    assert_eq!(engine.random.unwrap().to_string(), "llama-3-8b:q4_k,layers=2");
    let both = ["run", "--prompt", "hi", "--random", "tiny-llama", "--model", "m"];
    assert_eq!(parse(&both).unwrap_err().kind(), ErrorKind::ArgumentConflict);
    parse(&["bench", "serve", "--random", "tiny-llama"]).unwrap();
    parse(&["score", "--ids-file", "f.json", "--random", "tiny-llama"]).unwrap();
}

#[test]
fn a_preset_is_a_policy() {
    let folder = tempfile::tempdir().unwrap();
    let preset = |text: &str| {
        let path = folder.path().join("preset.ron");
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let gsa = preset(r#"(ucm_sparse_config: {"GSA": {"sparse_ratio": 0.3, "prefetch_workers": 4}})"#);
    let sparse = values::policy_of(&Registry::builtin(), &gsa).unwrap();
    assert_eq!(sparse.spec.to_string(), "GSA:prefetch_workers=4,sparse_ratio=0.3");
    let told = |text: &str| refused_value("--sparse", &preset(text)).replace(&gsa, "preset.ron");
    let two = r#"(ucm_sparse_config: {"GSA": {}, "ESA": {}})"#;
    let unknown_key = r#"(ucm_sparse_config: {"GSA": {"ratio": 0.3}})"#;
    assert!(told(unknown_key).contains("valid keys: "));
    let refused = [told(two), told("(sparse: {})"), refused_value("--sparse", "none.ron")];
    assert_snapshot!(refused.join("\n"), @"
    error: invalid value 'preset.ron' for '--sparse <SPEC>': 2 policies in a preset where one is to run
    error: invalid value 'preset.ron' for '--sparse <SPEC>': preset is not valid RON: 1:2-1:8: Unexpected field named `sparse` in `File`, expected `ucm_sparse_config` instead
    error: invalid value 'none.ron' for '--sparse <SPEC>': No such file or directory (os error 2)
    ");
}

#[test]
fn the_edges_of_each_range_are_accepted() {
    for (flag, value) in [
        ("--block-size", "4"),
        ("--block-size", "256"),
        ("--top-p", "1"),
        ("--top-p", "0.000001"),
        ("--min-p", "0"),
        ("--min-p", "1"),
        ("--temperature", "0"),
        ("--kv-blocks", "2"),
        ("--kv-memory", "1"),
        ("--seed", "18446744073709551615"),
        ("--sparse", "full"),
    ] {
        parse(&["run", "--prompt", "hi", flag, value])
            .unwrap_or_else(|error| panic!("{flag} {value}: {error}"));
    }
}

#[test]
fn memory_has_binary_and_decimal_suffixes() {
    for (text, bytes) in [
        ("7", 7),
        ("2KiB", 2048),
        ("2GiB", 2 << 30),
        ("2KB", 2000),
        ("2gb", 2_000_000_000),
        ("3 TiB", 3 << 40),
    ] {
        assert_eq!(super::values::memory(text), Ok(bytes), "{text}");
    }
    for text in ["GB", "2G", "1.5GiB", "-1GB", "0GB", "18446744073709551616", "16777216TiB", "ü"] {
        assert!(super::values::memory(text).is_err(), "{text}");
    }
    let args = run(&["--kv-tiers", "host=2GB,disk=/kv:512mib"]);
    let tiers = args.engine.kv_tiers.unwrap();
    assert_eq!(
        (tiers.host_bytes, tiers.to_string().as_str()),
        (Some(2_000_000_000), "host=2GB,disk=/kv:512MiB")
    );
}

/// Names that users of llama.cpp type, for flags with the same meaning.
#[test]
fn names_of_llama_cpp_are_understood() {
    let text = "run -m a.gguf -p Hi -s 7 --temp 0.5 --repeat-penalty 1.1 --n-predict 9 --dry-sequence-breaker X \
                --dry-penalty-last-n 64 --system-prompt Be";
    let Command::Run(args) =
        parse(&text.split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>()).unwrap().command
    else {
        panic!("not run")
    };
    assert_eq!(
        (args.prompt, args.max_tokens, args.system.as_deref()),
        (vec!["Hi".to_owned()], 9, Some("Be"))
    );
    let sampling = args.sampling;
    assert_eq!((sampling.seed, sampling.temperature, sampling.repetition_penalty), (7, Some(0.5), Some(1.1)));
    assert_eq!((sampling.dry_breaker, sampling.dry_last_tokens), (vec!["X".to_owned()], 64));
    assert_eq!(args.engine.model, Some("a.gguf".into()));
    assert_eq!(run(&["-n", "5"]).max_tokens, 5);
    assert!(parse(&["run", "-f", "book.txt"]).is_ok() && parse(&["chat", "-c", "4096"]).is_ok());
    assert_eq!(serve(&["--ctx-size", "4096", "-m", "a.gguf"]).context, Some(4096));
}

#[test]
fn run_takes_exactly_one_kind_of_input() {
    assert_snapshot!(refusal(&["run"]), @"
    error: the following required arguments were not provided:
      <PROMPT|--prompt <TEXT>|--prompt-file <FILE>|--messages <FILE.json>|--ids-file <FILE.json>>
    ");
    for pair in [["--prompt-file", "f"], ["--ids-file", "f.json"]] {
        let error = parse(&[&["run", "--prompt", "hi"], &pair[..]].concat()).unwrap_err();
        assert_eq!((error.kind(), error.exit_code()), (ErrorKind::ArgumentConflict, 2));
    }
}

#[test]
fn score_shares_the_engine_flags() {
    let args = "score --ids-file a.json --top 3 --logits-out o --last 8 --decode-from 4 --json --model m --sparse gsa \
                --kv-dtype f32 --block-size 8 --kv-blocks 9 --kv-memory 10 --chunk 11 --reproducible --kv-tiers disk=kv:1GiB \
                --device d";
    let Command::Shared(Shared::Score(args)) =
        parse(&args.split_whitespace().collect::<Vec<_>>()).unwrap().command
    else {
        panic!("not score");
    };
    assert_eq!((args.top, args.last, args.decode_from, args.json), (3, Some(8), Some(4), true));
    assert_eq!((args.engine.block_size, args.engine.kv_dtype), (8, KvDtype::F32));
    assert_snapshot!(refusal(&["serve", "--max-queued-requests", "-1"]), @"error: invalid value '-1' for '--max-queued-requests <N>': invalid digit found in string");
    assert_snapshot!(refusal(&["score", "--ids-file", "a.json", "--prompt", "hi"]), @"error: unexpected argument '--prompt' found");
    assert_eq!(parse(&["score"]).unwrap_err().exit_code(), 2);
}

#[test]
fn a_server_gets_the_flags_of_the_engine_as_they_were_given() {
    let line = "bench serve --plan restart --seed 3 -m m --quantize q4_k --sparse quest:page_budget=4 --select-on host --kv-dtype=f32 \
                --kv-memory 2MiB --reproducible --kv-tiers host=1GiB,disk=kv:1GiB --device=-d --json";
    let Command::Bench(Bench::Serve(args)) =
        parse(&line.split_whitespace().collect::<Vec<_>>()).unwrap().command
    else {
        panic!("not bench");
    };
    let flags: Vec<&str> = args.engine_flags.iter().map(|flag| flag.to_str().unwrap()).collect();
    assert_snapshot!(flags.join(" "), @"--model=m --quantize=q4_k --sparse=quest:page_budget=4 --select-on=host --kv-dtype=f32 --kv-memory=2MiB --reproducible --kv-tiers=host=1GiB,disk=kv:1GiB --device=-d");
    let served = serve(&flags).engine;
    assert_eq!(format!("{served:?}"), format!("{:?}", args.engine));
}

#[test]
fn the_other_commands_parse() {
    for line in [
        "generate hi",
        "models",
        "tokenize hi",
        "bench serve --url http://a/v1 --api-key-env KEY --form chat --slo ttft=1s,itl=50ms --rates 1,2.5 --seed 3",
        "bench policies",
        "bench policies --report --text t --json",
        "bench policies --report a.html --plan p.ron --out o -m m",
        "doctor --self-test --json",
        "doctor --self-test --random 20 --seed 7",
    ] {
        parse(&line.split_whitespace().collect::<Vec<_>>()).unwrap_or_else(|error| panic!("{line}: {error}"));
    }
    assert_eq!(parse(&["bench", "gpu"]).unwrap_err().exit_code(), 2);
    assert_eq!(parse(&["rnu"]).unwrap_err().exit_code(), 2);
    assert_eq!(parse(&[]).unwrap_err().exit_code(), 2);
}
