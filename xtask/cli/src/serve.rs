//! `pagoda serve`: the engine as an HTTP server.

use std::fs;
use std::io::{self, ErrorKind, IsTerminal as _};
use std::net::{TcpListener, ToSocketAddrs as _};
#[cfg(unix)]
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use models::{DecoderConfig, KvPlan, RopeScaling};
use pagoda::fetch::ModelCache;
use pagoda::usage::readable;
use pagoda::{
    CacheEvents, Demand, Engine, EngineOptions, HandleOptions, Model, Order, Replicas, TierSpec, error_chain,
};
use prefetch::spec::DiskSpec;
use sd_notify::NotifyState;
#[cfg(feature = "kv-events")]
use serve::KvPublisher;
#[cfg(feature = "tls")]
use serve::Tls;
#[cfg(feature = "otel")]
use serve::Traces;
use serve::{ApiKey, Listener, Options, Stopped};
use tracing_subscriber::EnvFilter;

use crate::cli::{EngineArgs, LogForm, ServeArgs};
use crate::default_model;
use crate::devices;
use crate::interrupt::LastSignal;
use crate::model;
use crate::open_model::open_model;
use crate::setup::{self, Need};

/// Default size of the KV pool in bytes on software drivers, which use the host's memory.
const SOFTWARE_KV_BYTES: u64 = 1 << 30;

/// Bytes of KV blocks that outlive the server on disk, if no flag sets a size and the file system has room for them.
const DISK_KV_BYTES: u64 = 10 << 30;

/// Number of steps after which a waiting request gains one level of priority, so that every request runs eventually.
const AGEING_STEPS: u32 = 1000;

/// Exit code of a server whose engine failed and could not be reopened: `EX_SOFTWARE` of sysexits, so that a
/// supervisor can distinguish this failure from wrong flags.
pub const EXIT_ENGINE_FAILED: u8 = 70;

/// An engine that failed and could not be opened anew.
#[derive(Debug)]
pub struct EngineFailed;

impl std::fmt::Display for EngineFailed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the engine failed")
    }
}

impl std::error::Error for EngineFailed {}

/// Runs the command.
///
/// # Errors
/// If the port is taken, and errors of the model and the device.
pub fn run(args: &ServeArgs) -> Result<()> {
    log(args.log);
    let (listener, address) = listener(args)?;
    let model = open_model(&args.engine)?;
    let (engines, options) = start(args, &model)?;
    let name = options.model_name.clone();
    let last_signal = LastSignal::default();
    let ready_file = ReadyFile::new(args.ready_file.as_deref(), &address)?;
    let ready = || {
        last_signal.listen();
        eprintln!("serving {name} at {address}");
        ready_file.write();
        notify(&[NotifyState::Ready]);
    };
    match serve::run(listener, engines, options, ready).context("cannot serve")? {
        Stopped::Drained => Ok(()),
        Stopped::TimedOut => {
            eprintln!("requests that took longer than {} seconds were cancelled", args.drain_timeout);
            Ok(())
        }
        Stopped::AtOnce => Err(last_signal.interrupted().into()),
        _ => Err(EngineFailed.into()),
    }
}

/// Opens the port or the Unix socket, and returns its address for people.
fn listener(args: &ServeArgs) -> Result<(Listener, String)> {
    #[cfg(unix)]
    if let Some(path) = &args.uds {
        // The socket of a server that has ended refuses connections, and is in the way.
        if UnixStream::connect(path).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused) {
            fs::remove_file(path).with_context(|| format!("--uds {}", path.display()))?;
        }
        let listener = UnixListener::bind(path).with_context(|| format!("--uds {}", path.display()))?;
        return Ok((listener.into(), format!("unix:{}", path.display())));
    }
    let listener = TcpListener::bind((args.host.as_str(), args.port))
        .with_context(|| format!("cannot listen at {}, port {}", args.host, args.port))?;
    let address = listener.local_addr()?;
    #[cfg(feature = "tls")]
    let scheme = if args.tls_cert.is_some() { "https" } else { "http" };
    #[cfg(not(feature = "tls"))]
    let scheme = "http";
    Ok((listener.into(), format!("{scheme}://{address}")))
}

/// Writes the events of this process to standard error.
fn log(form: LogForm) {
    let filter = || EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let lines = || tracing_subscriber::fmt().with_env_filter(filter()).with_writer(io::stderr);
    // An embedding program may have a subscriber of its own.
    let _ = match form {
        LogForm::Text => lines().with_ansi(io::stderr().is_terminal()).try_init(),
        LogForm::Json => lines().json().flatten_event(true).try_init(),
        LogForm::Off => Ok(()),
    };
}

/// Notifies systemd, if it started the server.
fn notify(states: &[NotifyState<'_>]) {
    // Without systemd there is nobody to tell.
    let _ = sd_notify::notify(false, states);
}

/// A file that exists while the server accepts calls.
struct ReadyFile<'a> {
    path: Option<&'a Path>,
    address: &'a str,
}

impl<'a> ReadyFile<'a> {
    /// Removes what an earlier server has left.
    fn new(path: Option<&'a Path>, address: &'a str) -> Result<Self> {
        match path.map(fs::remove_file) {
            Some(Err(error)) if error.kind() != ErrorKind::NotFound => Err(error)
                .with_context(|| format!("--ready-file {}", path.unwrap_or(Path::new("")).display())),
            _ => Ok(Self { path, address }),
        }
    }

    fn write(&self) {
        let Some(path) = self.path else { return };
        if let Err(error) = fs::write(path, format!("{}\n", self.address)) {
            eprintln!("--ready-file {}: {error}", path.display());
        }
    }
}

impl Drop for ReadyFile<'_> {
    fn drop(&mut self) {
        notify(&[NotifyState::Stopping]);
        // A server that was never ready has none.
        let _ = self.path.map(fs::remove_file);
    }
}

/// Starts the engines of a server, and everything else that the server needs.
///
/// # Errors
/// Errors of the device, and of the file of keys.
pub(crate) fn start(args: &ServeArgs, model: &Arc<Model>) -> Result<(Replicas, Options)> {
    setup::ensure(&[Need::Gpu])?;
    let devices = devices::of_engines(args.engine.device.as_deref(), args.engine.split.as_ref())?;
    let options = options(args, Arc::clone(model))?;
    #[cfg(feature = "kv-events")]
    let options = options.kv_events(kv_publishers(args, devices.len())?);
    #[cfg_attr(not(feature = "kv-events"), expect(unused_mut, reason = "publishers follow them"))]
    let mut engines = engines(args, model, &devices)?;
    #[cfg(feature = "kv-events")]
    options.kv_events.iter().zip(&mut engines).for_each(|(publisher, engine)| publisher.follow(engine));
    let mut bounds = HandleOptions::default();
    bounds.max_waiting = args.max_queued_requests;
    bounds.max_waiting_tokens = args.max_queued_tokens;
    bounds.stall_time = Some(Duration::from_secs(args.max_step_time));
    bounds.recover = true;
    Ok((Replicas::spawn(engines, bounds)?, options))
}

/// A publisher of the changes of each engine's KV cache, if the flags ask for them.
#[cfg(feature = "kv-events")]
fn kv_publishers(args: &ServeArgs, engines: usize) -> Result<Vec<KvPublisher>> {
    let ServeArgs { kv_events, kv_events_replay, kv_events_topic, .. } = args;
    let Some(endpoint) = kv_events else { return Ok(Vec::new()) };
    let bind = |rank| KvPublisher::bind(endpoint, kv_events_replay.as_deref(), kv_events_topic, rank);
    (0..).take(engines).map(|rank| bind(rank).context("--kv-events")).collect()
}

/// Opens an engine on each device.
fn engines(args: &ServeArgs, model: &Arc<Model>, devices: &[Option<String>]) -> Result<Vec<Engine>> {
    let place = |index| EngineIndex { index, of: devices.len() };
    let open = |(index, device): (usize, &Option<String>)| {
        let mut args = args.clone();
        args.engine.device.clone_from(device);
        if let Some(disk) = args.engine.kv_tiers.as_mut().and_then(|tiers| tiers.disk.as_mut()) {
            disk.path = place(index).folder(&disk.path);
        }
        if index > 0 {
            model.forget_gpu();
        }
        engine(&args, model, place(index))
    };
    devices.iter().enumerate().map(open).collect()
}

/// Index of an engine among the engines of a server, and their number.
#[derive(Clone, Copy)]
struct EngineIndex {
    index: usize,
    of: usize,
}

impl EngineIndex {
    /// Folder of the engine's disk tier. A folder has only one writer, so later engines add their index to `folder`.
    fn folder(self, folder: &Path) -> PathBuf {
        let mut path = folder.as_os_str().to_owned();
        if self.index > 0 {
            path.push(format!("-engine-{}", self.index));
        }
        path.into()
    }
}

fn engine(args: &ServeArgs, model: &Arc<Model>, place: EngineIndex) -> Result<Engine> {
    let longest = u64::from(context(args, model));
    let sequences = args.max_sequences;
    let demand = Demand::new(sequences, longest.saturating_mul(sequences.into())).longest(longest);
    let mut options = EngineOptions::from(&args.engine).demand(demand).max_context(args.context);
    if let Some(first) = first_context(&model.config.clone().for_longest(longest)) {
        eprintln!(
            "the factors of LongRoPE are those of texts of up to {longest} tokens, for all texts; with --context {first} they are \
             those of texts of up to {first}, which the model reads better with them"
        );
    }
    model::bound_steps(&args.engine, model, &mut options)?;
    options.prepare = true;
    // Placement follows the device, routers follow everything.
    options.cache_events = if place.of > 1 { CacheEvents::Device } else { CacheEvents::None };
    #[cfg(feature = "kv-events")]
    if args.kv_events.is_some() {
        options.cache_events = CacheEvents::All;
    }
    options.preemption = args.preempt;
    options.reserve_full_input = args.reserve_full_input;
    options.max_slowdown = Some(args.max_slowdown).filter(|most| most.is_finite());
    options.order = Order::Priority { ageing_steps: AGEING_STEPS };
    let sized = options.kv_memory.is_some() || options.kv_blocks.is_some();
    if !sized && model.gpu(&options)?.is_cpu() {
        options.kv_memory = Some(SOFTWARE_KV_BYTES);
    }
    let begun = Instant::now();
    let lines = model::opening_lines(&args.engine, &options, &model.gpu(&options)?);
    let engine = kept_or_open(args, model, options, place)?;
    drop(lines);
    model::note_context(&args.engine, args.context, model);
    model::note_pool(&args.engine, &engine);
    if args.engine.verbose {
        eprintln!("{}", model::loaded(model, &engine, begun.elapsed()));
    }
    Ok(engine)
}

/// Opens an engine, and keeps KV on disk if possible.
fn kept_or_open(
    args: &ServeArgs,
    model: &Arc<Model>,
    options: EngineOptions,
    place: EngineIndex,
) -> Result<Engine> {
    let open = |options| Engine::open(Arc::clone(model), options).map_err(model::of_flags);
    let Some(disk) = disk_kv(args, model, place)? else { return open(options) };
    let kept = options.clone().kv_tiers(disk);
    match Engine::open(Arc::clone(model), kept) {
        // Nobody asked for the disk, so what keeps the model from it is no reason to fail.
        Err(error @ pagoda::Error::KvTiers { .. }) => {
            eprintln!("KV is not kept on disk: {}", error_chain::joined(&error));
            open(options)
        }
        opened => Ok(opened?),
    }
}

/// Number of tokens of prompt and answer together.
fn context(args: &ServeArgs, model: &Model) -> u32 {
    let stated = model.config.context_length;
    args.context.map_or(stated, |tokens| tokens.min(stated))
}

/// Context length up to which the model's short LongRoPE factors apply; `None` if the model has none.
fn first_context(config: &DecoderConfig) -> Option<u32> {
    match &config.rope.scaling {
        RopeScaling::Long { short, .. } => short.as_ref().map(|short| short.original_context),
        _ => None,
    }
}

/// The default disk tier; `None` if the flags name another one or none.
fn disk_kv(args: &ServeArgs, model: &Model, place: EngineIndex) -> Result<Option<TierSpec>> {
    let EngineArgs { kv_tiers, random, block_size, .. } = &args.engine;
    if args.no_disk_kv || kv_tiers.is_some() || random.is_some() {
        return Ok(None);
    }
    let cache = ModelCache::user()?.path(&default_model::PACKAGE);
    let folder = cache.parent().context("the cache folder has no parent")?.join("kv");
    // A folder holds the blocks of one model in one form, and the factors of LongRoPE rotate their keys.
    let rope = model.config.clone().for_longest(context(args, model).into()).rope;
    let rotation = if rope == model.config.rope { "" } else { "-short" };
    let (name, print) = (model_name(args), model::fingerprint(&args.engine, model)?);
    let kv = EngineOptions::from(&args.engine).kv();
    let index = model.config.indexer.map(|_| format!("-index-{}", kv.of_index())).unwrap_or_default();
    let groups = if KvPlan::new(&model.config, kv)?.layout.groups.len() > 1 { "-groups" } else { "" };
    let name = format!("{name}-{print:032x}-{:?}{index}-{block_size}{groups}{rotation}", kv.dtype);
    let path = place.folder(&folder.join(name.to_lowercase()));
    let capacity_bytes = disk_bytes(&path)?;
    if capacity_bytes < DISK_KV_BYTES && !args.engine.quiet {
        eprintln!(
            "KV on disk: {}, of what the file system of {} has free",
            readable(capacity_bytes),
            folder.display()
        );
    }
    Ok(Some(TierSpec::default().disk(Some(DiskSpec { path, capacity_bytes }))))
}

/// Size in bytes of the default disk tier in a folder: `DISK_KV_BYTES`, but at most nine tenths of the space that is
/// free or taken by the folder's own files.
fn disk_bytes(folder: &Path) -> Result<u64> {
    let is_there = |path: &&Path| path.exists();
    let there = folder
        .ancestors()
        .find(is_there)
        .with_context(|| format!("{}: no part of it exists", folder.display()))?;
    let free = fs4::available_space(there).with_context(|| there.display().to_string())?;
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    let own: u64 = files.filter_map(|file| Some(file.metadata().ok()?.len())).sum();
    Ok(fitting(free.saturating_add(own)))
}

/// Bytes of the default disk tier if `room` bytes are free.
fn fitting(room: u64) -> u64 {
    DISK_KV_BYTES.min(room - room / 10)
}

fn options(args: &ServeArgs, model: Arc<Model>) -> Result<Options> {
    let context = context(args, &model);
    let (name, aliases) = match args.model_name.split_first() {
        Some((name, aliases)) => (name.clone(), aliases.to_vec()),
        None => (model_name(args), Vec::new()),
    };
    let mut options = Options::new(model, name);
    options.model_aliases = aliases;
    options.strict_model = args.strict_model;
    options.strict = args.strict;
    options.allowed_origins.clone_from(&args.allowed_origins);
    options.api_key_file.clone_from(&args.api_key_file);
    #[cfg(feature = "tls")]
    if let Some((certificates, key)) = args.tls_cert.as_ref().zip(args.tls_key.as_ref()) {
        options.connections = options.connections.tls(Tls::read(certificates, key)?);
    }
    #[cfg(feature = "otel")]
    if let Some(endpoint) = &args.otlp_traces_endpoint {
        // Several kinds of cryptography may be linked, of which the client takes none by itself.
        pagoda::hub::choose_cryptography();
        options.traces = Some(Traces::to(endpoint).context("--otlp-traces-endpoint")?);
    }
    options.context_length = context;
    // Behind a loopback address any page of a browser can be; what listens elsewhere has a name of its own.
    options.allowed_hosts = args.allowed_hosts.clone().or_else(|| is_loopback(&args.host).then(Vec::new));
    options.metrics_names = args.metrics_names;
    options.seed = args.seed;
    options.drain_timeout = Duration::from_secs(args.drain_timeout);
    options.request_timeout = args.request_timeout.map(Duration::from_secs);
    if let Some(path) = &args.api_key_file {
        let text = fs::read_to_string(path).with_context(|| format!("--api-key-file {}", path.display()))?;
        options.api_keys =
            ApiKey::read_all(&text).with_context(|| format!("--api-key-file {}", path.display()))?;
    }
    Ok(options)
}

/// Whether an address or name can only be reached from this machine.
fn is_loopback(host: &str) -> bool {
    (host, 0).to_socket_addrs().is_ok_and(|mut addresses| addresses.all(|address| address.ip().is_loopback()))
}

/// The name of the model's file without its ending, or of its folder.
fn model_name(args: &ServeArgs) -> String {
    let EngineArgs { model, random, .. } = &args.engine;
    if let Some(random) = random {
        return random.to_string();
    }
    let file = model.as_deref().unwrap_or(Path::new(default_model::PACKAGE.file));
    let name = if file.is_dir() { file.file_name() } else { file.file_stem() };
    name.map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_disk_tier_takes_what_there_is_room_for() {
        assert_eq!([0, 10, 1 << 30, 1 << 50].map(fitting), [0, 9, (1 << 30) - (1 << 30) / 10, 10 << 30]);
        // A folder that is not there yet is of the file system of the next one above it.
        let folder = tempfile::tempdir().unwrap();
        assert!(disk_bytes(&folder.path().join("a/b")).unwrap() > 0);
    }

    #[test]
    fn names_and_addresses_of_this_machine_are_loopback() {
        assert!(is_loopback("localhost") && is_loopback("127.0.0.1") && is_loopback("::1"));
        assert!(!is_loopback("0.0.0.0") && !is_loopback("192.0.2.1"));
    }
}
