//! A Redis server of a test: real, on a loopback port of its own, ended by its own pid.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The server; it keeps nothing on disk.
pub(crate) struct Redis {
    server: Child,
    pub(crate) port: u16,
}

impl Redis {
    /// Starts a server on a free port. Another process can take the port in between: then the next is tried.
    pub(crate) fn start() -> Self {
        let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        (0..5).find_map(|_| Self::start_on(free())).expect("redis-server starts on a free port")
    }

    /// Starts a server on `port`; `None` when the port is taken.
    pub(crate) fn start_on(port: u16) -> Option<Self> {
        let server = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server is installed");
        let mut redis = Self { server, port };
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(20) && redis.server.try_wait().unwrap().is_none() {
            if redis.command("PING").is_some_and(|answer| answer.starts_with("+PONG")) {
                return Some(redis);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        None
    }

    /// Sends one command in the inline form and returns the beginning of the answer.
    pub(crate) fn command(&self, command: &str) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
        stream.write_all(format!("{command}\r\n").as_bytes()).ok()?;
        let mut answer = [0; 4096];
        let length = stream.read(&mut answer).ok()?;
        Some(String::from_utf8_lossy(&answer[..length]).into_owned())
    }

    /// The number behind `label` in the answer to a command; 0 where there is none.
    pub(crate) fn number(&self, command: &str, label: &str) -> u64 {
        let answer = self.command(command).unwrap_or_default();
        let digits = answer.split_once(label).map_or("", |(_, rest)| rest);
        let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        digits[..end].parse().unwrap_or(0)
    }

    /// The tier spec of this server.
    pub(crate) fn spec(&self) -> String {
        format!("remote=redis://127.0.0.1:{}/0", self.port)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        // It may have been killed by the test already.
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}
