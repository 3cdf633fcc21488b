//! The page of [`cases`](super::cases) in headless Chromium: Dawn and Tint, over SwiftShader.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use axum::Router;
use axum::body::Bytes;
use axum::extract::Path as Segment;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Deserialize;
use tempfile::TempDir;
use tokio::runtime::{self, Runtime};

/// Names of Chromium; the first one that runs is used.
const PROGRAMS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

/// Flags for Chromium without a window or network traffic, with WebGPU by its software renderer.
const FLAGS: [&str; 9] = [
    "--headless",
    "--no-sandbox",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-unsafe-webgpu",
    "--use-webgpu-adapter=swiftshader",
    "--enable-features=Vulkan",
];

/// Time without a message from the page after which the page is given up. Some kernels compile for half a minute.
const PATIENCE: Duration = Duration::from_secs(300);

/// Number of lines of Chromium's log that an error shows.
const LAST_LINES: usize = 10;

/// Message of the page.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum PageMessage {
    Row(Row),
    End(End),
    Error(String),
}

/// Outcome of a variant.
#[derive(Debug, Deserialize)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) outcome: CaseOutcome,
    pub(super) note: String,
    ms: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum CaseOutcome {
    Passed,
    Failed,
    Lacking,
}

#[derive(Debug, Deserialize)]
struct End {
    browser: String,
    adapter: String,
}

/// Serves the folder, lets Chromium run the page, and writes one line per variant to `out`; returns the rows.
///
/// # Errors
/// If Chromium cannot be run, ends early or says nothing for long, or the page cannot run the cases.
pub(super) fn run(dir: &Path, program: Option<&Path>, out: &mut impl Write) -> Result<Vec<Row>> {
    let (sender, messages) = mpsc::channel();
    let server = Server::start(dir, sender)?;
    let mut chromium = Chromium::start(program, &server.url)?;
    let mut rows: Vec<Row> = Vec::new();
    let mut heard = Instant::now();
    let end = loop {
        match messages.recv_timeout(Duration::from_millis(500)) {
            Ok(PageMessage::Row(row)) => {
                writeln!(out, "{:50} {}", row.name, row.says())?;
                rows.push(row);
                heard = Instant::now();
            }
            Ok(PageMessage::End(end)) => break end,
            Ok(PageMessage::Error(error)) => bail!("{error}: {}", chromium.last_words()),
            Err(RecvTimeoutError::Timeout) => {
                let silent = heard.elapsed();
                ensure!(
                    silent < PATIENCE,
                    "the page said nothing for {} s: {}",
                    silent.as_secs(),
                    chromium.last_words()
                );
                let ended = chromium.child.try_wait()?;
                ensure!(ended.is_none(), "Chromium ended before the page did: {}", chromium.last_words());
            }
            Err(RecvTimeoutError::Disconnected) => bail!("the server of the page ended"),
        }
    };
    let count = |outcome| rows.iter().filter(|row| row.outcome == outcome).count();
    writeln!(
        out,
        "{} passed, {} failed, {} need more than the browser has\n{}\n{}",
        count(CaseOutcome::Passed),
        count(CaseOutcome::Failed),
        count(CaseOutcome::Lacking),
        end.browser,
        end.adapter
    )?;
    Ok(rows)
}

impl Row {
    fn says(&self) -> String {
        let Self { outcome, note, ms, .. } = self;
        match outcome {
            CaseOutcome::Passed => format!("passed {ms:8.0} ms"),
            CaseOutcome::Failed => format!("FAILED {ms:8.0} ms: {note}"),
            CaseOutcome::Lacking => format!("not run: {note}"),
        }
    }
}

/// A server of the folder at a loopback address.
struct Server {
    url: String,
    _runtime: Runtime,
}

impl Server {
    fn start(dir: &Path, messages: Sender<PageMessage>) -> Result<Self> {
        let runtime = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let url = format!("http://{}/index.html?report", listener.local_addr()?);
        let dir = dir.to_owned();
        let file = move |Segment(name): Segment<String>| std::future::ready(file(&dir, &name));
        let message = move |body: Bytes| {
            let message = serde_json::from_slice(&body)
                .unwrap_or_else(|error| PageMessage::Error(format!("a message of the page: {error}")));
            // Whoever waited may have given up.
            let _ = messages.send(message);
            std::future::ready(())
        };
        let app = Router::new().route("/report", post(message)).route("/{file}", get(file));
        let listener = runtime.block_on(async { tokio::net::TcpListener::from_std(listener) })?;
        runtime.spawn(async move { axum::serve(listener, app).await });
        Ok(Self { url, _runtime: runtime })
    }
}

/// A file directly in the folder; 404 for any other path.
fn file(dir: &Path, name: &str) -> Response {
    let kind = match Path::new(name).extension().and_then(OsStr::to_str) {
        Some("html") => "text/html; charset=utf-8",
        Some("mjs") => "text/javascript; charset=utf-8",
        Some("json") => "application/json",
        _ => "application/octet-stream",
    };
    let inside = Path::new(name).file_name() == Some(OsStr::new(name));
    match inside.then(|| fs::read(dir.join(name))) {
        Some(Ok(bytes)) => ([(header::CONTENT_TYPE, kind)], bytes).into_response(),
        _ => StatusCode::NOT_FOUND.into_response(),
    }
}

/// A browser that runs until it is dropped.
struct Chromium {
    child: Child,
    profile: TempDir,
}

impl Chromium {
    fn start(program: Option<&Path>, url: &str) -> Result<Self> {
        let profile = tempfile::tempdir()?;
        let programs = program.map_or_else(|| PROGRAMS.map(PathBuf::from).to_vec(), |one| vec![one.into()]);
        for program in &programs {
            let log = File::create(profile.path().join("log"))?;
            let started = Command::new(program)
                .args(FLAGS)
                .arg(format!("--user-data-dir={}", profile.path().display()))
                .arg(url)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(log)
                .spawn();
            match started {
                Ok(child) => return Ok(Self { child, profile }),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    return Err(error).with_context(|| format!("{}: cannot be run", program.display()));
                }
            }
        }
        let names: Vec<_> = programs.iter().map(|program| program.display().to_string()).collect();
        bail!("there is no Chromium: {} not found", names.join(", "))
    }

    /// Returns the end of the browser's log.
    fn last_words(&self) -> String {
        let log = fs::read(self.profile.path().join("log")).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<_> = log.lines().rev().take(LAST_LINES).collect();
        let lines: Vec<_> = lines.into_iter().rev().collect();
        if lines.is_empty() {
            "Chromium logged nothing".into()
        } else {
            format!("Chromium's log ends with\n{}", lines.join("\n"))
        }
    }
}

impl Drop for Chromium {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use attn_kernels::NamedVariant;
    use attn_kernels::self_test::{Case, Values};

    use super::super::cases::Cases;
    use super::*;
    use crate::self_test;

    /// Makes the first expectation one that a right kernel does not meet.
    fn spoil(case: &mut Case) {
        match &mut case.wants[0].1 {
            Values::Words(want) => want[0] ^= 1,
            Values::Floats(_, _, want) | Values::Finite(_, want) | Values::LogSums(_, want) => {
                let number = want.iter_mut().find(|x| x.is_finite()).unwrap();
                *number = *number * 1.5 + 1.0;
            }
            Values::Indices(indices) => indices.limits.fill(0),
        }
    }

    /// Kernels of each form of results (words, floats with and without scales, those that are finite, indices), one that reads an
    /// image, and one with a variable in a loop that begins at zero.
    #[test]
    fn chromium_passes_what_is_right_and_fails_what_is_not() {
        const KERNELS: [&str; 8] = [
            "cache_write-int8",
            "copy_blocks",
            "dequantise-int8",
            "embed-q4-images",
            "keep_blocks",
            "latent_write-two-fp8-bf16",
            "lse_merge",
            "matmul_int8-q4",
        ];
        let right = self_test::variants(16, |named| KERNELS.contains(&&*named.name));
        assert_eq!(right.len(), KERNELS.len());
        // The last cases are hostile ones, if there are any.
        let ends = |cases: &[Case]| [cases[0].clone(), cases[cases.len() - 1].clone()];
        let spoilt = |(named, cases): &(NamedVariant, Vec<Case>)| {
            let spoilt = ends(cases).into_iter().zip(["first", "last"]).map(|(mut case, which)| {
                spoil(&mut case);
                let name = format!("{}-spoilt-{which}", named.name);
                (NamedVariant { name, ..named.clone() }, vec![case])
            });
            spoilt.collect::<Vec<_>>()
        };
        let mut wrong: Vec<_> = right.iter().flat_map(spoilt).collect();
        let (mut named, mut cases) = right[1].clone();
        named.name.push_str("-spoilt-buffer");
        // The last block that it writes ends behind the buffer.
        let buffer = &mut cases[0].buffers[1];
        buffer.truncate(buffer.len() / 8 * 7 - 32);
        wrong.push((named, cases));
        let dir = tempfile::tempdir().unwrap();
        Cases::new([right, wrong].concat()).unwrap().write(dir.path()).unwrap();
        let rows = run(dir.path(), None, &mut io::sink()).unwrap();
        assert_eq!(rows.len(), 3 * KERNELS.len() + 1);
        for row in rows {
            let wanted =
                if row.name.contains("-spoilt-") { CaseOutcome::Failed } else { CaseOutcome::Passed };
            assert_eq!(row.outcome, wanted, "{}: {}", row.name, row.note);
            let outside = row.note.ends_with("was written, which is outside the buffer");
            assert_eq!(outside, row.name.contains("-spoilt-buffer"), "{}: {}", row.name, row.note);
        }
    }

    #[test]
    fn a_missing_browser_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let error = run(dir.path(), Some(Path::new("no-such-browser")), &mut io::sink()).unwrap_err();
        assert_eq!(error.to_string(), "there is no Chromium: no-such-browser not found");
    }
}
