//! Services and directories as storage of a remote tier, through OpenDAL.

mod credentials;
mod lookup;
mod rendezvous;

pub use credentials::Credentials;

use std::net::{TcpStream, ToSocketAddrs as _};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use opendal::layers::{RetryLayer, TimeoutLayer};
use opendal::{Error, ErrorKind, Operator, services};
use tokio::runtime::Runtime;

use super::naming::Naming;
use super::objects::{ObjectError, Objects};
use super::{FORMAT_NAME, RemoteConfig, RemoteTier};
use crate::clock::SystemClock;
use crate::spec::RemoteSpec;
use crate::tier::{Stored, TierError, TierName};

impl RemoteTier {
    /// Opens the storage that a tier spec names. A service is not contacted yet, but a directory must exist.
    ///
    /// # Errors
    /// [`TierError::Backend`] when it cannot be set up or the build lacks the feature for it.
    pub fn open(spec: &RemoteSpec, config: RemoteConfig) -> Result<Self, TierError> {
        let place = match spec {
            RemoteSpec::Redis { endpoint, database } => {
                prepare_tls(config.name, endpoint)?;
                let mut redis = services::Redis::default().endpoint(endpoint).db(i64::from(*database));
                if let Some(credentials) = &config.credentials {
                    redis = redis.username(credentials.username()).password(credentials.password());
                }
                operator(redis.root("/pagoda"), &config)?
            }
            RemoteSpec::Directory { path } => {
                return Self::directories(std::slice::from_ref(path), None, config);
            }
            #[cfg(feature = "s3")]
            RemoteSpec::S3 { bucket, prefix } => {
                choose_cryptography();
                // Sets the HTTP client of OpenDAL, unless the program has set one.
                let client = opendal_http_transport_reqwest::ReqwestTransport::default();
                opendal::HttpTransporter::install_default(client);
                operator(services::S3::default().bucket(bucket).root(&format!("/{prefix}")), &config)?
            }
            #[cfg(not(feature = "s3"))]
            RemoteSpec::S3 { .. } => return Err(lacks(config.name, "opening an s3 bucket", "s3")),
        };
        let naming = Naming::flat(config.space());
        Self::over_services(vec![place], naming, config)
    }

    /// Opens plain directories in the Posix layout of UCM: a block is the file `data/HEX`, or, with `dir_shard_chars` = n, is
    /// in a directory named by the first n hex characters. While it is being written, its name ends in `.tmp`. With several
    /// directories, the hash selects one; listing one twice is allowed.
    ///
    /// # Errors
    /// [`TierError::Directory`] when a directory is missing: it is not created, since it may be a mount that
    /// is down.
    pub fn directories(
        paths: &[PathBuf],
        dir_shard_chars: Option<u8>,
        config: RemoteConfig,
    ) -> Result<Self, TierError> {
        let mut places = Vec::new();
        for path in paths {
            let unusable = |source| TierError::Directory { tier: config.name, path: path.clone(), source };
            if !std::fs::metadata(path).map_err(unusable)?.is_dir() {
                return Err(unusable(std::io::ErrorKind::NotADirectory.into()));
            }
            places.push(operator(services::Fs::default().root(&path.to_string_lossy()), &config)?);
        }
        if places.is_empty() {
            let missing = std::io::Error::from(std::io::ErrorKind::NotFound);
            return Err(failed(config.name, "opening directories", missing));
        }
        let naming = Naming::posix(config.space(), dir_shard_chars);
        Self::over_services(places, naming, config)
    }

    fn over_services(places: Vec<Operator>, naming: Naming, config: RemoteConfig) -> Result<Self, TierError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("remote-tier")
            .enable_all()
            .build()
            .map_err(|e| failed(config.name, "starting the runtime", e))?;
        let runtime = Arc::new(Background(Some(runtime)));
        let timeout = config.timeout;
        let service =
            |place| Arc::new(Service { place, runtime: runtime.clone(), timeout }) as Arc<dyn Objects>;
        let places = places.into_iter().map(service).collect();
        Ok(Self::assemble(places, naming, Arc::new(SystemClock::new()), config))
    }
}

/// A runtime for the requests of one tier. Dropping it does not block, so that tasks of other runtimes can drop the
/// tier.
struct Background(Option<Runtime>);

impl Drop for Background {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// Time without an answer after which the connection to a Redis server is checked.
const PATIENCE: Duration = Duration::from_millis(200);

/// One service or directory.
struct Service {
    place: Operator,
    runtime: Arc<Background>,
    timeout: Duration,
}

impl Service {
    /// Runs a request on the runtime of the tier and waits for the answer. Threads of other runtimes may call this,
    /// too.
    fn run<T: Send + 'static>(
        &self,
        request: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, ObjectError> {
        let (sender, receiver) = mpsc::sync_channel(1);
        let runtime = self.runtime.0.as_ref().expect("taken only in drop");
        runtime.spawn(async move {
            // The receiver waits, unless its thread is gone with a panic.
            let _ = sender.send(request.await);
        });
        let answer = match self.place.info().scheme() {
            "redis" => self.wait_for_redis(&receiver)?,
            _ => receiver.recv().map_err(|gone| ObjectError::Failed(Box::new(gone)))?,
        };
        answer.map_err(|error| match error.kind() {
            ErrorKind::NotFound => ObjectError::NotFound,
            ErrorKind::RangeNotSatisfied => ObjectError::Short,
            _ => ObjectError::Failed(Box::new(error)),
        })
    }

    /// Waits for an answer, at most for the timeout. If none comes soon, checks that the server can be reached,
    /// because the client would try to connect for twice the timeout before it reports that no server is there.
    fn wait_for_redis<T>(&self, answer: &mpsc::Receiver<T>) -> Result<T, ObjectError> {
        let limit = self.timeout;
        let until = Instant::now() + limit;
        let rest = || until.saturating_duration_since(Instant::now());
        match answer.recv_timeout(PATIENCE.min(limit)) {
            Err(RecvTimeoutError::Timeout) => reach(&self.place.info().name(), rest())?,
            answer => return answer.map_err(|gone| ObjectError::Failed(Box::new(gone))),
        }
        let late =
            || std::io::Error::new(std::io::ErrorKind::TimedOut, format!("no answer within {limit:?}"));
        answer.recv_timeout(rest()).map_err(|_| ObjectError::Failed(Box::new(late())))
    }
}

impl Objects for Service {
    fn read(&self, name: &str, range: Range<u64>) -> Result<Vec<u8>, ObjectError> {
        let (place, name) = (self.place.clone(), name.to_owned());
        // Every service reads a range without more: an object may be larger than memory.
        Ok(self.run(async move { place.read_with(&name).range(range).await })?.to_vec())
    }

    fn size(&self, name: &str) -> Result<u64, ObjectError> {
        let (place, name) = (self.place.clone(), name.to_owned());
        Ok(self.run(async move { place.stat(&name).await })?.content_length())
    }

    fn exist(&self, names: &[String]) -> Result<Vec<bool>, ObjectError> {
        self.run(lookup::all_exist(self.place.clone(), names.to_vec()))
    }

    fn write(&self, name: &str, object: Vec<u8>) -> Result<Stored, ObjectError> {
        let (place, name, patience) = (self.place.clone(), name.to_owned(), self.timeout * 4);
        self.run(async move {
            if place.info().scheme() == "fs" {
                return rendezvous::write(&place, &name, object, patience).await;
            }
            // One request of the other services shows the whole object or nothing.
            place.write(&name, object).await.map(|_| Stored::Written)
        })
    }

    fn remove(&self, name: &str) -> Result<(), ObjectError> {
        let (place, name) = (self.place.clone(), name.to_owned());
        self.run(async move { place.delete(&name).await })
    }

    /// Checks that the bucket exists: reads of an object cannot tell a missing bucket from an empty one, and some
    /// services create it on the first write. Keys without permission to list buckets skip the check.
    fn check_container(&self) -> Result<(), ObjectError> {
        match self.place.info().scheme() {
            "s3" => {}
            "redis" => return reach(&self.place.info().name(), self.timeout),
            _ => return Ok(()),
        }
        let place = self.place.clone();
        let missing = self.run(async move {
            match place.list(FORMAT_NAME).await {
                // So OpenDAL calls `NoSuchBucket`.
                Err(error) if error.kind() == ErrorKind::ConfigInvalid => Ok(true),
                Err(error) if error.kind() != ErrorKind::PermissionDenied => Err(error),
                _ => Ok(false),
            }
        })?;
        if missing { Err(ObjectError::NoContainer(self.place.info().name().into())) } else { Ok(()) }
    }
}

/// Connects to a Redis server and hangs up. The client would retry for seconds before it reports that no server answers.
fn reach(endpoint: &str, timeout: Duration) -> Result<(), ObjectError> {
    let failed = |error: std::io::Error| ObjectError::Failed(Box::new(error));
    let address = endpoint.split_once("://").map_or(endpoint, |(_, address)| address);
    let has_port = address.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']'));
    let address = if has_port { address.to_owned() } else { format!("{address}:6379") };
    let mut last = std::io::Error::from(std::io::ErrorKind::AddrNotAvailable);
    // A connection without time to connect is refused as a wrong argument.
    let timeout = timeout.max(Duration::from_millis(1));
    for address in address.to_socket_addrs().map_err(failed)? {
        match TcpStream::connect_timeout(&address, timeout) {
            Ok(_) => return Ok(()),
            Err(error) => last = error,
        }
    }
    Err(failed(last))
}

fn operator(service: impl opendal::Builder, config: &RemoteConfig) -> Result<Operator, TierError> {
    let operator = Operator::new(service).map_err(|e| failed(config.name, "configuring the service", e))?;
    let timeouts = TimeoutLayer::new().with_timeout(config.timeout).with_io_timeout(config.timeout);
    Ok(operator.layer(timeouts).layer(RetryLayer::new().with_max_times(1)))
}

/// Chooses the cryptography of TLS connections, unless the program has chosen.
#[cfg(any(feature = "s3", feature = "tls"))]
pub fn choose_cryptography() {
    // An error only tells that the program has chosen.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

#[cfg(feature = "tls")]
fn prepare_tls(_: TierName, endpoint: &str) -> Result<(), TierError> {
    if endpoint.starts_with("rediss:") {
        choose_cryptography();
    }
    Ok(())
}

#[cfg(not(feature = "tls"))]
fn prepare_tls(tier: TierName, endpoint: &str) -> Result<(), TierError> {
    let tls = endpoint.starts_with("rediss:");
    if tls { Err(lacks(tier, "opening a connection with TLS", "tls")) } else { Ok(()) }
}

#[cfg(not(all(feature = "s3", feature = "tls")))]
fn lacks(tier: TierName, action: &'static str, feature: &str) -> TierError {
    let missing = format!("built without the feature `{feature}`");
    failed(tier, action, std::io::Error::new(std::io::ErrorKind::Unsupported, missing))
}

fn failed(
    tier: TierName,
    action: &'static str,
    source: impl std::error::Error + Send + Sync + 'static,
) -> TierError {
    TierError::Backend { tier, action, source: Box::new(source) }
}
