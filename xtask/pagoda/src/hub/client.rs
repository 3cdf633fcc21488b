//! Requests to the hub.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Duration;

use reqwest::header::{self, HeaderMap};
use reqwest::{Response, StatusCode, redirect};
use serde::Deserialize;
use sha1::Sha1;
use sha2::{Digest, Sha256};

use super::error::HubError;
use super::reference::Reference;
use super::{Progress, Settings};

/// Longest wait for a connection, and for the next bytes of an answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// Maximum number of consecutive attempts to continue a download that brought no byte.
const MAX_RETRIES: u32 = 5;

/// Number of bytes per read.
const CHUNK: usize = 1 << 20;

/// HTTP clients for requests to the hub.
#[derive(Debug)]
pub(super) struct Client {
    /// Client that follows redirects, without the token if they lead to another host.
    http: reqwest::Client,
    /// Client that follows no redirects, because the first answer has the hash.
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

impl Client {
    /// Creates the HTTP clients; sends no request.
    pub(super) fn new(settings: &Settings) -> Result<Self, HubError> {
        choose_cryptography();
        let builder = || {
            reqwest::Client::builder()
                .user_agent(concat!("pagoda/", env!("CARGO_PKG_VERSION")))
                .connect_timeout(PATIENCE)
                .read_timeout(PATIENCE)
        };
        let built = |builder: reqwest::ClientBuilder| {
            builder.build().map_err(|source| HubError::System { source: io::Error::other(source) })
        };
        Ok(Self {
            http: built(builder())?,
            first_answer: built(builder().redirect(redirect::Policy::none()))?,
            endpoint: settings.endpoint.clone(),
            token: settings.token.clone(),
        })
    }

    /// The commit and the files of a revision.
    pub(super) async fn repository(&self, reference: &Reference) -> Result<Repository, HubError> {
        let url = format!(
            "{}/api/models/{}/revision/{}",
            self.endpoint,
            reference.repo,
            escaped(&reference.revision)
        );
        let response = self.ask(self.http.get(&url), reference).await?;
        let repository: Repository = serde_json::from_slice(&self.body(response).await?)
            .map_err(|error| wrong(&url, format!("the answer is no list of files: {error}")))?;
        match is_hash(&repository.commit) {
            true => Ok(repository),
            false => Err(wrong(&url, "the answer names no commit")),
        }
    }

    /// Hash and size of a file.
    pub(super) async fn describe(
        &self,
        reference: &Reference,
        commit: &str,
        file: &str,
    ) -> Result<Remote, HubError> {
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
            return Err(wrong(&url, "the answer has no hash or no size of the file"));
        };
        Ok(Remote { file: file.to_owned(), url, etag, bytes })
    }

    /// Downloads a file to `path`, continuing an earlier attempt, and checks its size and hash. A wrong file is
    /// removed.
    pub(super) async fn download(
        &self,
        remote: &Remote,
        path: &Path,
        progress: &mut (dyn FnMut(Progress<'_>) + Send),
    ) -> Result<(), HubError> {
        let written = || HubError::io(path, "written");
        let open = File::options().read(true).append(true).create(true).open(path);
        let mut out = open.map_err(written())?;
        let length = |out: &File| Ok(out.metadata().map_err(HubError::io(path, "read"))?.len());
        let mut retries = 0;
        loop {
            let before = length(&out)?;
            if before >= remote.bytes {
                break;
            }
            match self.append(remote, (&mut out, path), progress).await {
                Ok(()) => {
                    let after = length(&out)?;
                    if after <= before {
                        let reason = format!("ends after {after} of {} bytes", remote.bytes);
                        return Err(wrong(&remote.url, reason));
                    }
                }
                Err(error @ HubError::Unreachable { .. }) => {
                    let stuck = length(&out)? == before;
                    retries = if stuck { retries + 1 } else { 0 };
                    if retries == MAX_RETRIES {
                        return Err(error);
                    }
                    tokio::time::sleep(Duration::from_millis(200 << retries)).await;
                }
                Err(error) => return Err(error),
            }
        }
        out.sync_all().map_err(written())?;
        let checked = check(remote, &mut out).map_err(HubError::io(path, "read"))?;
        checked.or_else(|reason| {
            // Going on from it would end in the same fault.
            std::fs::remove_file(path).map_err(HubError::io(path, "removed"))?;
            Err(wrong(&remote.url, reason))
        })
    }

    /// Fetches the missing end of a file, as far as the connection lasts.
    async fn append(
        &self,
        remote: &Remote,
        (out, path): (&mut File, &Path),
        progress: &mut (dyn FnMut(Progress<'_>) + Send),
    ) -> Result<(), HubError> {
        let written = || HubError::io(path, "written");
        let wrong = |reason: String| wrong(&remote.url, reason);
        let mut bytes = out.metadata().map_err(HubError::io(path, "read"))?.len();
        let mut request = self.with_token(self.http.get(&remote.url));
        if bytes > 0 {
            request = request.header(header::RANGE, format!("bytes={bytes}-"));
        }
        let mut response = request.send().await.map_err(|source| self.unreachable(source))?;
        let status = response.status();
        if !status.is_success() {
            return Err(wrong(status.to_string()));
        }
        let begin = format!("bytes {bytes}-");
        let goes_on =
            text(response.headers(), "content-range").is_some_and(|range| range.starts_with(&begin));
        if bytes > 0 && !(status == StatusCode::PARTIAL_CONTENT && goes_on) {
            // The whole file, from its beginning.
            out.set_len(0).map_err(written())?;
            bytes = 0;
            if status != StatusCode::OK {
                return Err(wrong(format!("{status} with other bytes than requested")));
            }
        }
        while let Some(chunk) = response.chunk().await.map_err(|source| self.unreachable(source))? {
            out.write_all(&chunk).map_err(written())?;
            bytes += chunk.len() as u64;
            if bytes > remote.bytes {
                return Err(wrong(format!("more than the announced {} bytes", remote.bytes)));
            }
            progress(Progress::Bytes { file: &remote.file, bytes, total: remote.bytes });
        }
        Ok(())
    }

    /// Sends a request; a refusal becomes an error about the repository or file of `reference`.
    async fn ask(
        &self,
        request: reqwest::RequestBuilder,
        reference: &Reference,
    ) -> Result<Response, HubError> {
        let response = self.with_token(request).send().await.map_err(|source| self.unreachable(source))?;
        let reason = match response.status() {
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
        Err(HubError::Refused {
            reference: reference.to_string(),
            reason,
            url: response.url().to_string(),
            status: response.status().to_string(),
        })
    }

    async fn body(&self, response: Response) -> Result<Vec<u8>, HubError> {
        Ok(response.bytes().await.map_err(|source| self.unreachable(source))?.to_vec())
    }

    fn with_token(&self, request: reqwest::RequestBuilder) -> reqwest::RequestBuilder {
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    fn unreachable(&self, source: reqwest::Error) -> HubError {
        HubError::Unreachable { endpoint: self.endpoint.clone(), source: source.into() }
    }
}

/// Makes the error of an invalid answer of `url`.
fn wrong(url: &str, reason: impl Into<String>) -> HubError {
    HubError::Answer { url: url.to_owned(), reason: reason.into() }
}

/// Chooses the cryptography for TLS connections of this process, unless the program has already chosen one. HTTP
/// clients have no default of their own.
pub fn choose_cryptography() {
    // An error only tells that it was chosen.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Compares a file with the size and the hash that the hub announced; the inner error says how they differ.
fn check(remote: &Remote, file: &mut File) -> io::Result<Result<(), String>> {
    let Remote { etag, bytes: announced, .. } = remote;
    let bytes = file.metadata()?.len();
    if bytes != *announced {
        return Ok(Err(format!("{bytes} bytes came, {announced} were announced")));
    }
    file.seek(SeekFrom::Start(0))?;
    let found = if etag.len() == 64 {
        digest(Sha256::new(), file)?
    } else {
        // As git hashes the contents of a file.
        let mut hash = Sha1::new();
        hash.update(format!("blob {bytes}\0"));
        digest(hash, file)?
    };
    Ok(match found == *etag {
        true => Ok(()),
        false => Err(format!("the hash of what came is {found}, {etag} was announced")),
    })
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

/// Whether a text is a hash: 40 or 64 hexadecimal digits.
fn is_hash(text: &str) -> bool {
    [40, 64].contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name)?.to_str().ok()
}

/// Escapes a part of a path for an address.
fn escaped(part: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    part.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}
