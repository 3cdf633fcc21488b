//! The files for Dynamo's indexer: servers send events where it is told to listen, and it is told in its own words.

use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use super::manifests::{container, object};
use super::{read, text, texts};
use crate::fleet::{call, direct, packages, until};
use crate::kv_events::two_ports;
use crate::server::Server;

/// The ports of events and of replays, in the variables of a file.
const PORTS: [(&str, &str); 2] = [("PAGODA_KV_EVENTS", "5557"), ("PAGODA_KV_EVENTS_REPLAY", "5567")];

/// Dynamo's indexer at port 8090, as the Dockerfile starts it.
fn entry_point() -> Vec<String> {
    let lines = read("dockerfile", &text("Dockerfile"));
    let lines = lines.as_array().unwrap();
    let stage =
        lines.iter().position(|line| line[1].as_str().unwrap().ends_with(" AS dynamo-indexer")).unwrap();
    let value = |instruction: &str| {
        let line = lines[stage..].iter().find(|line| line[0] == instruction).unwrap();
        line[1].as_str().unwrap().to_owned()
    };
    let tested = include_str!("../../../serve/tests/clients/kv_indexer.txt").trim();
    assert!(value("RUN").contains(tested), "the version that is tested");
    serde_json::from_str(&value("ENTRYPOINT")).unwrap()
}

/// The command that registers servers, and the variables of a server.
fn from_compose() -> (String, Vec<(String, String)>) {
    let file = read("compose", &text("compose-dynamo.yaml"));
    let services = &file["services"];
    assert_eq!(services["pagoda-1"], services["pagoda-2"]);
    let script = texts(&services["dynamo-register"]["command"])[0].replace("$$", "$");
    assert_eq!(texts(&services["dynamo-register"]["entrypoint"]), ["sh", "-ec"]);
    let variables = services["pagoda-1"]["environment"].as_object().unwrap();
    let of = |(name, value): (&String, &Value)| (name.clone(), value.as_str().unwrap().to_owned());
    (script, variables.iter().map(of).collect())
}

fn from_kubernetes() -> (String, Vec<(String, String)>) {
    let patch = read("documents", &text("kubernetes-dynamo-patch.yaml"));
    let pagoda = container(&patch[0]);
    let command = texts(&pagoda["lifecycle"]["postStart"]["exec"]["command"]);
    assert_eq!(command[..2], ["sh", "-ec"]);
    let variables = pagoda["env"].as_array().unwrap();
    let of = |each: &Value| Some((each["name"].as_str()?.to_owned(), each["value"].as_str()?.to_owned()));
    (command[2].to_owned(), variables.iter().filter_map(of).collect())
}

#[test]
fn servers_send_events_where_the_indexer_is_told_to_listen() {
    for (script, variables) in [from_compose(), from_kubernetes()] {
        let mut serve = Command::new(env!("CARGO_BIN_EXE_xtask"));
        for ((name, value), (expected, port)) in variables.iter().zip(PORTS) {
            assert_eq!((name.as_str(), value.as_str()), (expected, format!("tcp://0.0.0.0:{port}").as_str()));
            serve.env(name, format!("tcp://127.0.0.1:{}", two_ports()));
            assert!(script.contains(&format!(":{port}\"")), "{script}");
        }
        let server = Server::spawn(serve.args(["serve", "--no-disk-kv"]));
        let sources = server.ask("GET", "/kv_event_sources", "");
        let sources: Value = serde_json::from_str(sources.split_once("\r\n\r\n").unwrap().1).unwrap();
        assert!(sources[0]["endpoint"].is_string() && sources[0]["replay_endpoint"].is_string(), "{sources}");
        assert!(
            script.contains(r#""block_size": 16"#) && script.contains("http://dynamo-indexer:8090/register")
        );
    }
    assert!(entry_point()[2].contains("'--port', '8090'"));
    let objects = read("kubernetes", &text("kubernetes-dynamo.yaml"));
    let objects = objects.as_array().unwrap();
    let deployment = object(objects, "Deployment", "dynamo-indexer");
    let service = &object(objects, "Service", "dynamo-indexer")["spec"]["ports"][0];
    assert_eq!(
        (&service["port"], &service["targetPort"]),
        (&8090.into(), &container(deployment)["ports"][0]["name"])
    );
    assert_eq!(container(deployment)["ports"][0]["containerPort"], 8090);
}

/// Dynamo's indexer, at a port of its own.
struct Indexer {
    process: Child,
    address: String,
}

impl Indexer {
    fn start() -> Self {
        let packages = packages::clients().join("../../serve/tests/clients/kv_indexer.txt");
        let python = packages::python("kv-indexer", packages.to_str().unwrap());
        let port = two_ports();
        let command = entry_point()[2].replace("8090", &port.to_string());
        let mut process = Command::new(&python);
        let process = process.args(["-c", &command]).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Self { process: process.unwrap(), address: format!("127.0.0.1:{port}") }
    }
}

impl Drop for Indexer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs the commands of the files, but for their addresses. It fetches 60 MB once, so it is for `PAGODA_LONG_TESTS=1`.
#[test]
fn the_indexer_finds_what_servers_hold() {
    if !crate::is_long() {
        return;
    }
    for (script, variables) in [from_compose(), from_kubernetes()] {
        let indexer = Indexer::start();
        let mut script = script.replace("dynamo-indexer:8090", &indexer.address);
        // Only the first server of the composed ones is there.
        script = script.replace("in 1 2", "in 1").replace("pagoda-'$server'", "127.0.0.1");
        let mut serve = Command::new(env!("CARGO_BIN_EXE_xtask"));
        serve.env("POD_IP", "127.0.0.1");
        for ((name, _), (_, port)) in variables.iter().zip(PORTS) {
            let own = two_ports();
            serve.env(name, format!("tcp://127.0.0.1:{own}"));
            script = script.replace(&format!(":{port}\""), &format!(":{own}\""));
        }
        let server = Server::spawn(serve.args(["serve", "--no-disk-kv", "--model-name", "model"]));
        let mut shell = Command::new("sh");
        packages::succeed(shell.args(["-ec", &script]).env("POD_IP", "127.0.0.1"));
        let prompt: Vec<u32> = (1..65).collect();
        let body = json!({ "model": "model", "prompt": prompt, "max_tokens": 1 });
        direct(&server, "/v1/completions", &body).ok();
        let query = json!({ "model_name": "model", "token_ids": prompt }).to_string();
        until("the indexer knows the prompt", || {
            let reply = call(&indexer.address, "", "POST", "/query", &query);
            let instances = reply.ok()["instances"].as_object().cloned().unwrap_or_default();
            instances.len() == 1 && instances.values().all(|instance| instance["gpu"] == 64)
        });
    }
}

/// Two servers under one indexer, one of which is killed and starts again with nothing in its cache.
#[test]
fn the_indexer_follows_two_servers_through_a_restart() {
    if !crate::is_long() {
        return;
    }
    let indexer = Indexer::start();
    let address = &indexer.address;
    let endpoints = [(); 2].map(|()| [(); 2].map(|()| format!("tcp://127.0.0.1:{}", two_ports())));
    let start = |at: usize| {
        let [events, replay] = &endpoints[at];
        Server::start(&["--model-name", "model", "--kv-events", events, "--kv-events-replay", replay])
    };
    let [mut first, second] = [start(0), start(1)];
    until("the indexer listens", || std::net::TcpStream::connect(address).is_ok());
    for (id, [events, replay]) in (1..).zip(&endpoints) {
        let worker = json!({ "instance_id": id, "model_name": "model", "block_size": 16, "endpoint": events,
            "replay_endpoint": replay });
        let reply = call(address, "", "POST", "/register", &worker.to_string());
        assert_eq!(reply.status, 201, "{}", reply.body);
    }
    let prompt = |seed: u32| (0..64).map(|n| (seed * 17 + n * n) % 100 + 1).collect::<Vec<u32>>();
    let ask = |server: &Server, seed: u32| {
        direct(
            server,
            "/v1/completions",
            &json!({ "model": "model", "prompt": prompt(seed), "max_tokens": 1 }),
        )
        .ok();
    };
    // Leading tokens of a prompt that the indexer finds on each server.
    let held = |seed: u32| {
        let query = json!({ "model_name": "model", "token_ids": prompt(seed) }).to_string();
        let json = call(address, "", "POST", "/query", &query).ok();
        ["1", "2"].map(|id| json["instances"][id]["gpu"].as_u64().unwrap_or(0))
    };
    ask(&first, 1);
    ask(&second, 2);
    until("each prompt is on its server", || (held(1), held(2)) == ([64, 0], [0, 64]));
    first.kill();
    let first = start(0);
    ask(&first, 3);
    ask(&second, 3);
    until("the new prompt is on both, the old one gone", || {
        (held(3), held(1), held(2)) == ([64; 2], [0; 2], [0, 64])
    });
}
