//! A server process that can be killed.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::time::sleep;

use super::super::{Client, LoadPrompt};
use super::KEPT;
use crate::cli::{BenchServeArgs, PromptForm};

/// Time without a written byte after which all blocks count as written.
const QUIET: Duration = Duration::from_secs(1);

/// Maximum time for all blocks to be written.
const MAX_SAVE_TIME: Duration = Duration::from_secs(120);

/// `serve` of this program, with a disk tier.
pub(super) struct Server {
    process: Process,
    pub(super) client: Client,
    metrics: Client,
    /// Seconds until the server was ready.
    pub(super) start_s: f64,
}

impl Server {
    /// Starts a server with the flags of the engine and the disk tier `folder`, unless they name another one.
    ///
    /// # Errors
    /// If the process cannot be started or ends before it is ready, with what it said last.
    pub(super) async fn start(args: &BenchServeArgs, folder: &Path) -> Result<Self> {
        let begun = Instant::now();
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["serve", "--port", "0"]).args(&args.engine_flags);
        if args.engine.kv_tiers.is_none() {
            command.arg(format!("--kv-tiers=disk={}:4GiB", folder.display()));
        }
        let mut process =
            Process(command.stderr(Stdio::piped()).spawn().context("the server cannot be started")?);
        let stderr = process.0.stderr.take().expect("stderr is piped");
        let mut lines = BufReader::new(stderr).lines().map_while(Result::ok);
        let mut said = String::new();
        let address = lines.find_map(|line| {
            let address = line.rsplit_once(" at http://").map(|(_, address)| address.to_owned());
            said = line;
            address.filter(|_| said.starts_with("serving "))
        });
        let Some(address) = address else { bail!("the server ended before it was ready: {said}") };
        // The rest is read, so that the server is never stopped by a full pipe.
        thread::spawn(move || lines.for_each(drop));
        let start_s = begun.elapsed().as_secs_f64();
        let probe = LoadPrompt::new(PromptForm::Ids, &[1, 2, 3]);
        let client = Client::connect(&format!("http://{address}/v1"), None, &probe).await?;
        let metrics = client.beside(&format!("http://{address}"));
        Ok(Self { process, client, metrics, start_s })
    }

    /// Waits until the tiers that outlive the process have taken all blocks that are to be written.
    ///
    /// # Errors
    /// If nothing is written, or the server does not answer.
    pub(super) async fn written(&self) -> Result<()> {
        let begun = Instant::now();
        let (mut bytes, mut since) = (0.0, Instant::now());
        while bytes == 0.0 || since.elapsed() < QUIET {
            let page = self.metrics.text("/metrics").await?;
            let now = page.lines().filter(|line| is_kept(line)).filter_map(value).sum();
            if now > bytes {
                (bytes, since) = (now, Instant::now());
            }
            if begun.elapsed() > MAX_SAVE_TIME {
                bail!(
                    "{bytes} bytes were written to disk or a store within {} seconds",
                    MAX_SAVE_TIME.as_secs()
                );
            }
            sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// Ends the process by SIGKILL.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn kill(mut self) -> Result<()> {
        self.process.0.kill()?;
        self.process.0.wait()?;
        Ok(())
    }
}

/// A process that does not outlive its owner.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn is_kept(line: &str) -> bool {
    let of = |tier: &&str| line.contains(&format!("tier=\"{tier}\""));
    line.starts_with("pagoda:tier_written_bytes_total") && KEPT.iter().any(of)
}

fn value(line: &str) -> Option<f64> {
    line.rsplit_once(' ')?.1.parse().ok()
}
