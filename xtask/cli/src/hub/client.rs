//! Requests to the hub.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use reqwest::header::{self, HeaderMap};
use reqwest::{Response, StatusCode, redirect};
use serde::Deserialize;
use sha1::Sha1;
use sha2::{Digest, Sha256};

use super::reference::Reference;
use super::{Progress, Settings};

/// Longest wait for a connection, and for the next bytes of an answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// Attempts in a row to go on with a download, after which it fails if none brought a byte.
const MAX_RETRIES: u32 = 5;

/// Bytes read at a time.
const CHUNK: usize = 1 << 20;

/// A connection to the hub.
#[derive(Debug)]
pub struct Client {
    /// Follows redirects, without the token if they lead to another host.
    http: reqwest::Client,
    /// Follows none: the first answer has the hash.
    first_answer: reqwest::Client,
    endpoint: String,
    token: Option<String>,
}

/// The files of a repository at one commit.
#[derive(Debug, Deserialize)]
pub(super) struct Repository {
    #[serde(rename = "sha")]
    pub(super) commit: String,
    #[serde(rename = "siblings", deserialize_with = "paths")]
    pub(super) files: Vec<String>,
}

fn paths<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    struct Sibling {
        rfilename: String,
    }
    let siblings = Vec::<Sibling>::deserialize(deserializer)?;
    Ok(siblings.into_iter().map(|sibling| sibling.rfilename).collect())
}

/// A file on the hub.
#[derive(Debug, Clone)]
pub(super) struct Remote {
    /// Path of the file in the repository.
    file: String,
    url: String,
    /// Hash of the file: SHA-256 of large files, git's SHA-1 of a blob for others.
    pub(super) etag: String,
    bytes: u64,
}

/// The network, or the hub, does not answer.
#[derive(Debug, thiserror::Error)]
#[error("{endpoint} does not answer")]
struct Unreachable {
    endpoint: String,
    source: reqwest::Error,
}

/// Whether an error means that there is no network, rather than that the hub refused.
pub(super) fn is_unreachable(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Unreachable>().is_some()
}

impl Client {
    /// Prepares requests; nothing is sent yet.
    ///
    /// # Errors
    /// If the address needs TLS, and this program is built without it.
    pub fn new(settings: &Settings) -> Result<Self> {
        ensure!(
            !settings.endpoint.starts_with("https:") || cfg!(any(feature = "hub", feature = "s3")),
            "{}: TLS is in programs that are built with --features hub",
            settings.endpoint
        );
        choose_cryptography();
        let builder = || {
            reqwest::Client::builder()
                .user_agent(concat!("pagoda/", env!("CARGO_PKG_VERSION")))
                .connect_timeout(PATIENCE)
                .read_timeout(PATIENCE)
        };
        Ok(Self {
            http: builder().build()?,
            first_answer: builder().redirect(redirect::Policy::none()).build()?,
            endpoint: settings.endpoint.clone(),
            token: settings.token.clone(),
        })
    }

    /// The commit and the files of a revision.
    pub(super) async fn repository(&self, reference: &Reference) -> Result<Repository> {
        let url = format!(
            "{}/api/models/{}/revision/{}",
            self.endpoint,
            reference.repo,
            escaped(&reference.revision)
        );
        let response = self.ask(self.http.get(&url), reference).await?;
        let repository: Repository = serde_json::from_slice(&self.body(response).await?)
            .with_context(|| format!("{url}: the answer is no list of files"))?;
        is_hash(&repository.commit)
            .then_some(repository)
            .with_context(|| format!("{url}: the answer names no commit"))
    }

    /// Hash and size of a file.
    pub(super) async fn describe(&self, reference: &Reference, commit: &str, file: &str) -> Result<Remote> {
        let path = file.split('/').map(escaped).collect::<Vec<_>>().join("/");
        let url = format!("{}/{}/resolve/{commit}/{path}", self.endpoint, reference.repo);
        let response = self.ask(self.first_answer.head(&url), reference).await?;
        let headers = response.headers();
        let etag = text(headers, "x-linked-etag").or_else(|| text(headers, "etag"));
        let etag = etag.map(|etag| etag.trim_start_matches("W/").trim_matches('"').to_lowercase());
        let etag = etag.filter(|etag| is_hash(etag));
        let bytes = text(headers, "x-linked-size").or_else(|| text(headers, "content-length"));
        let bytes = bytes.and_then(|bytes| bytes.parse().ok());
        let (Some(etag), Some(bytes)) = (etag, bytes) else {
            bail!("{url}: the answer has no hash or no size of the file")
        };
        Ok(Remote { file: file.to_owned(), url, etag, bytes })
    }

    /// Fetches a file to `path`, going on where an earlier attempt ended, and checks its size and hash. What is wrong is
    /// removed.
    pub(super) async fn download(
        &self,
        remote: &Remote,
        path: &Path,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<()> {
        let open = File::options().read(true).append(true).create(true).open(path);
        let mut out = open.with_context(|| format!("{}: cannot be written", path.display()))?;
        let mut retries = 0;
        loop {
            let before = out.metadata()?.len();
            if before >= remote.bytes {
                break;
            }
            match self.append(remote, &mut out, progress).await {
                Ok(()) => {
                    let after = out.metadata()?.len();
                    ensure!(after > before, "{}: ends after {after} of {} bytes", remote.url, remote.bytes);
                }
                Err(error) if !is_unreachable(&error) => {
                    return Err(error.context(path.display().to_string()));
                }
                Err(error) => {
                    let stuck = out.metadata()?.len() == before;
                    retries = if stuck { retries + 1 } else { 0 };
                    if retries == MAX_RETRIES {
                        return Err(error);
                    }
                    tokio::time::sleep(Duration::from_millis(200 << retries)).await;
                }
            }
        }
        out.sync_all()?;
        check(remote, &mut out).or_else(|wrong| {
            // Going on from it would end in the same fault.
            std::fs::remove_file(path)?;
            Err(wrong)
        })
    }

    /// Fetches what is missing at the end of a file, as far as the connection lasts.
    async fn append(
        &self,
        remote: &Remote,
        out: &mut File,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<()> {
        let mut bytes = out.metadata()?.len();
        let mut request = self.with_token(self.http.get(&remote.url));
        if bytes > 0 {
            request = request.header(header::RANGE, format!("bytes={bytes}-"));
        }
        let mut response = request.send().await.map_err(|source| self.unreachable(source))?;
        let status = response.status();
        ensure!(status.is_success(), "{}: {status}", remote.url);
        let begin = format!("bytes {bytes}-");
        let goes_on =
            text(response.headers(), "content-range").is_some_and(|range| range.starts_with(&begin));
        if bytes > 0 && !(status == StatusCode::PARTIAL_CONTENT && goes_on) {
            // The whole file, from its beginning.
            out.set_len(0)?;
            bytes = 0;
            ensure!(status == StatusCode::OK, "{}: {status} with other bytes than asked for", remote.url);
        }
        while let Some(chunk) = response.chunk().await.map_err(|source| self.unreachable(source))? {
            out.write_all(&chunk)?;
            bytes += chunk.len() as u64;
            ensure!(bytes <= remote.bytes, "{}: more than the announced {} bytes", remote.url, remote.bytes);
            progress(Progress { file: &remote.file, bytes, total: remote.bytes });
        }
        Ok(())
    }

    /// Sends a request whose refusal is of a repository or a file of it.
    async fn ask(&self, request: reqwest::RequestBuilder, reference: &Reference) -> Result<Response> {
        let response = self.with_token(request).send().await.map_err(|source| self.unreachable(source))?;
        let url = response.url().clone();
        let why = match response.status() {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN if self.token.is_none() => {
                "it does not exist, is private, or has terms to agree to: set HF_TOKEN"
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                "the token may not read it: perhaps its page has terms to agree to"
            }
            StatusCode::NOT_FOUND => "there is no such repository, revision or file",
            status if status.is_success() || status.is_redirection() => return Ok(response),
            _ => "the hub failed",
        };
        Err(anyhow!("{reference}: {why} ({url}: {})", response.status()))
    }

    async fn body(&self, response: Response) -> Result<Vec<u8>> {
        Ok(response.bytes().await.map_err(|source| self.unreachable(source))?.to_vec())
    }

    fn with_token(&self, request: reqwest::RequestBuilder) -> reqwest::RequestBuilder {
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    fn unreachable(&self, source: reqwest::Error) -> anyhow::Error {
        Unreachable { endpoint: self.endpoint.clone(), source }.into()
    }
}

/// Chooses the cryptography of TLS connections for HTTP clients, which are built without one, unless the program has chosen.
pub(crate) fn choose_cryptography() {
    // An error only tells that it was chosen.
    #[cfg(feature = "hub")]
    let _ = rustls::crypto::ring::default_provider().install_default();
    #[cfg(all(not(feature = "hub"), any(feature = "s3", feature = "tls")))]
    prefetch::tier::choose_cryptography();
}

/// Compares a file with the hash that the hub announced.
fn check(remote: &Remote, file: &mut File) -> Result<()> {
    let bytes = file.metadata()?.len();
    ensure!(bytes == remote.bytes, "{}: {bytes} bytes came, {} were announced", remote.url, remote.bytes);
    file.seek(SeekFrom::Start(0))?;
    let found = if remote.etag.len() == 64 {
        digest(Sha256::new(), file)?
    } else {
        // As git hashes the contents of a file.
        let mut hash = Sha1::new();
        hash.update(format!("blob {bytes}\0"));
        digest(hash, file)?
    };
    ensure!(
        found == remote.etag,
        "{}: the hash of what came is {found}, {} was announced",
        remote.url,
        remote.etag
    );
    Ok(())
}

fn digest(mut hash: impl Digest, file: &mut File) -> io::Result<String> {
    let mut chunk = vec![0; CHUNK];
    loop {
        match file.read(&mut chunk)? {
            0 => return Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()),
            read => hash.update(&chunk[..read]),
        }
    }
}

/// Whether a text is a hash in hexadecimal: of 40 digits, or of 64.
fn is_hash(text: &str) -> bool {
    [40, 64].contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name)?.to_str().ok()
}

/// A part of a path, as addresses have it.
fn escaped(part: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    part.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}
