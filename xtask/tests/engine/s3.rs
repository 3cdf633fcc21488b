//! An S3-compatible store behind the engine: a server of the test, found by the environment.

#[path = "../../../prefetch/tests/it/services/s3.rs"]
pub(crate) mod service;

use std::fs;

use crate::tiers::check_shared;
use crate::{ids_file, prompts, refused, tiny};
use service::{BUCKET, S3};

#[test]
fn processes_share_a_bucket() {
    let server = S3::start();
    check_shared(&server.environment(), &format!("remote=s3://{BUCKET}/models"), "remote");
    let kept = fs::read_dir(server.folder.path().join(BUCKET).join("models")).unwrap();
    assert_eq!(kept.count(), 2, "the format, and the folder of this model");
}

#[test]
fn a_bucket_that_is_missing_is_named() {
    let server = S3::start();
    let file = ids_file(&prompts([20]));
    let mut generate = tiny("generate");
    generate.arg("--ids-file").arg(file.path()).args(["--kv-tiers", "remote=s3://no-such-bucket/models"]);
    let said = refused(generate.envs(server.environment()), 1);
    assert!(said.contains("remote tier: there is no bucket \"no-such-bucket\""), "{said}");
    assert!(!server.folder.path().join("no-such-bucket").exists());
}

#[test]
fn a_key_that_is_not_right_is_refused() {
    let server = S3::start();
    let file = ids_file(&prompts([20]));
    let mut generate = tiny("generate");
    generate.arg("--ids-file").arg(file.path()).args(["--kv-tiers", &format!("remote=s3://{BUCKET}")]);
    generate.envs(server.environment()).env("AWS_SECRET_ACCESS_KEY", "another");
    let said = refused(&mut generate, 1);
    assert!(said.contains("reading the format") && said.contains("SignatureDoesNotMatch"), "{said}");
}
