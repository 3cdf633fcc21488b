//! `serve --kv-events` with several engines.
#![cfg(unix)]

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use crate::fleet::packages::{self, succeed};
use crate::server::Server;
use crate::tiny_llama;

/// The first of two ports in a row that nobody has.
pub(crate) fn two_ports() -> u16 {
    loop {
        let first = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = first.local_addr().unwrap().port();
        if port.checked_add(1).is_some_and(|next| TcpListener::bind(("127.0.0.1", next)).is_ok()) {
            return port;
        }
    }
}

/// Each engine is a rank of its own to a subscriber that others wrote.
#[test]
fn the_events_of_each_engine_are_those_of_a_rank() {
    const TOPIC: &str = "kv@127.0.0.1:8000@tiny";
    let endpoint = |port: u16| format!("tcp://127.0.0.1:{port}");
    let [events, replay] = [two_ports(), two_ports()].map(endpoint);
    let flags = ["--device", "0,0", "--kv-events", &events, "--kv-events-replay", &replay];
    let server = Server::start(&[&flags[..], &["--kv-events-topic", TOPIC]].concat());
    let clients = Path::new(env!("CARGO_MANIFEST_DIR")).join("serve/tests/clients");
    let python = packages::python("kv-events", clients.join("kv_events.txt").to_str().unwrap());
    let base = format!("http://{}", server.address);
    succeed(Command::new(python).arg(clients.join("kv_ranks.py")).args([&base, TOPIC]));

    // The ports of rank 1 are the next ones, one of which rank 0 has here.
    let port = two_ports();
    let (events, replay) = (endpoint(port), endpoint(port + 1));
    let mut serve = Command::new(env!("CARGO_BIN_EXE_xtask"));
    serve.args(["serve", "--device", "0,0", "--no-disk-kv", "--model"]).arg(tiny_llama());
    let refused = serve.args(["--kv-events", &events, "--kv-events-replay", &replay]).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains(&format!("--kv-events: cannot listen at {replay}: ")), "{said}");
}
