//! Compose and Kubernetes: the commands start real servers, probes name paths that these answer, and times and ports agree.

use std::process::Command;

use serde_json::Value;

use super::{read, text, texts};
use crate::fleet::{Router, answered, chat, model, packages, program, until};
use crate::redis::Redis;
use crate::server::Server;

/// Starts a server by the arguments of a file. Its addresses, sizes and model become those of the test.
fn start(args: &[&str], redis: &Redis) -> Server {
    assert_eq!(args[0], "serve");
    let mut serve = Command::new(env!("CARGO_BIN_EXE_xtask"));
    for arg in args {
        let (flag, value) = arg.split_once('=').unwrap_or((arg, ""));
        match flag {
            "--host" => serve.arg("--host=127.0.0.1"),
            "--port" => serve.arg("--port=0"),
            "--model" => serve.arg("--model").arg(model()),
            "--kv-tiers" => {
                let tiers = value.replace("redis:6379", &format!("127.0.0.1:{}", redis.port));
                assert_ne!(tiers, value, "the store is the service of the file");
                serve.args(["--kv-tiers", &tiers.replace("GiB", "MiB")])
            }
            _ => serve.arg(arg),
        };
    }
    Server::listening(serve.args(["--kv-memory", "16MiB"]))
}

/// The number of a flag.
#[track_caller]
fn number(args: &[&str], flag: &str) -> u64 {
    let value = args.iter().find_map(|arg| arg.strip_prefix(flag)?.strip_prefix('='));
    value.unwrap_or_else(|| panic!("{flag} in {args:?}")).parse().unwrap()
}

/// Seconds of a time such as `45s`.
fn seconds(time: &Value) -> u64 {
    time.as_str().unwrap().strip_suffix('s').unwrap().parse().unwrap()
}

#[track_caller]
fn answers(server: &Server, path: &str) {
    assert!(server.ask("GET", path, "").starts_with("HTTP/1.1 200 "), "{path}");
}

/// The flags of a command of SMG, all of which it must know.
fn check_smg(args: &[&str]) {
    let help = packages::succeed(Command::new(program("smg", "smg")).args(["launch", "--help"]));
    let help = String::from_utf8(help.stdout).unwrap();
    let known: Vec<&str> = help.split([' ', '[', ',', '\n']).filter(|word| word.starts_with("--")).collect();
    for flag in args.iter().filter(|arg| arg.starts_with("--")) {
        let name = flag.split('=').next().unwrap();
        assert!(known.contains(&name), "SMG knows no {name}");
    }
}

/// Starts SMG by the arguments of a file, before other servers.
fn start_smg(args: &[&str], workers: &[Server; 2]) -> Router {
    let command = |[port, metrics]: [String; 2]| {
        let mut smg = Command::new(program("smg", "smg"));
        for arg in args.iter().take_while(|arg| **arg != "--worker-urls") {
            match arg.split('=').next().unwrap() {
                "--host" | "--prometheus-host" => smg.arg(arg.replace("0.0.0.0", "127.0.0.1")),
                "--port" => smg.arg(format!("--port={port}")),
                "--prometheus-port" => smg.arg(format!("--prometheus-port={metrics}")),
                _ => smg.arg(arg),
            };
        }
        smg.arg("--worker-urls").args(workers.each_ref().map(|worker| format!("http://{}", worker.address)));
        smg
    };
    Router::start(command, "/readiness", "")
}

/// The container of a Deployment.
pub(super) fn container(object: &Value) -> &Value {
    let containers = object["spec"]["template"]["spec"]["containers"].as_array().unwrap();
    assert_eq!(containers.len(), 1);
    &containers[0]
}

pub(super) fn object<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let fits = |object: &&Value| object["kind"] == kind && object["metadata"]["name"] == name;
    objects.iter().find(fits).unwrap_or_else(|| panic!("no {kind} {name}"))
}

/// Images that a stage of the Dockerfile makes.
fn stages() -> Vec<String> {
    let lines = read("dockerfile", &text("Dockerfile"));
    let lines = lines.as_array().unwrap();
    let from = lines.iter().filter(|line| line[0] == "FROM");
    from.filter_map(|line| Some(line[1].as_str().unwrap().split_once(" AS ")?.1.to_owned())).collect()
}

#[test]
fn the_composed_services_run() {
    let file = read("compose", &text("compose.yaml"));
    let services = &file["services"];
    let redis = Redis::start();
    let workers = ["pagoda-1", "pagoda-2"].map(|name| {
        let service = &services[name];
        let args = texts(&service["command"]);
        assert!(seconds(&service["stop_grace_period"]) > number(&args, "--drain-timeout"));
        let server = start(&args, &redis);
        let probe = texts(&service["healthcheck"]["test"]);
        let path = probe.last().unwrap().strip_prefix("http://127.0.0.1:8080").expect("its own port");
        assert_eq!(number(&args, "--port"), 8080);
        answers(&server, path);
        assert!(stages().contains(&service["build"]["target"].as_str().unwrap().to_owned()));
        server
    });
    let smg = texts(&services["smg"]["command"]);
    check_smg(&smg);
    let urls: Vec<&str> = smg.iter().filter_map(|arg| arg.strip_prefix("http://")).collect();
    assert_eq!(urls, ["pagoda-1:8080", "pagoda-2:8080"]);
    let router = start_smg(&smg, &workers);
    // A text that one server has had goes there again: it may have been the only one that the router knew.
    let mut numbers = 0..;
    until("the router answers for both servers", || {
        for n in numbers.by_ref().take(4) {
            let mut body = chat(&format!("{n} {}", "is new ".repeat(30)), 4);
            body["model"] = "model".into();
            router.post("/v1/chat/completions", &body).ok();
        }
        workers.iter().all(|worker| answered(worker) > 0)
    });
    // What is scraped are the servers, and the metrics of SMG.
    let content = |name: &str| read("documents", file["configs"][name]["content"].as_str().unwrap());
    let prometheus = content("prometheus");
    let scraped = prometheus[0]["scrape_configs"].as_array().unwrap();
    assert_eq!(texts(&scraped[0]["static_configs"][0]["targets"]), urls);
    let metrics = format!("smg:{}", number(&smg, "--prometheus-port"));
    assert_eq!(texts(&scraped[1]["static_configs"][0]["targets"]), [metrics.as_str()]);
    let job = format!("up{{job={}}}", scraped[0]["job_name"]);
    assert!(text("alerts.yaml").contains(&job), "an alert watches the job {job}");
    // Files are where the programs look for them.
    let mounted = |service: &str, source: &str| {
        let configs = services[service]["configs"].as_array().unwrap();
        configs.iter().find(|config| config["source"] == source).unwrap()["target"].as_str().unwrap()
    };
    assert_eq!(texts(&prometheus[0]["rule_files"]), [mounted("prometheus", "alerts")]);
    let boards = content("boards");
    let folder = boards[0]["providers"][0]["options"]["path"].as_str().unwrap();
    assert!(mounted("grafana", "board").starts_with(folder));
    for name in ["alerts", "board"] {
        assert!(!text(file["configs"][name]["file"].as_str().unwrap()).is_empty());
    }
}

#[test]
fn the_manifests_run() {
    let objects = read("kubernetes", &text("kubernetes.yaml"));
    let objects = objects.as_array().unwrap();
    let deployment = object(objects, "Deployment", "pagoda");
    let pod = &deployment["spec"]["template"];
    let pagoda = container(deployment);
    let args = texts(&pagoda["args"]);
    let redis = Redis::start();
    let server = start(&args, &redis);
    for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
        let get = &pagoda[probe]["httpGet"];
        assert_eq!(get["port"], pagoda["ports"][0]["name"], "{probe}");
        answers(&server, get["path"].as_str().unwrap());
    }
    assert_eq!(pagoda["ports"][0]["containerPort"], number(&args, "--port"));
    let pause = pagoda["lifecycle"]["preStop"]["sleep"]["seconds"].as_u64().unwrap();
    let grace = pod["spec"]["terminationGracePeriodSeconds"].as_u64().unwrap();
    assert!(grace > pause + number(&args, "--drain-timeout"));
    // SIGTERM ends the readiness at once, and the life only with the server.
    let stream = std::thread::scope(|scope| {
        let stream =
            scope.spawn(|| server.ask("POST", "/v1/chat/completions", &chat("a hare", 3000).to_string()));
        until("the server is busy", || crate::fleet::running(&server) > 0);
        server.signal("-TERM");
        until("the server is not ready", || server.ask("GET", "/health/ready", "").contains(" 503 "));
        answers(&server, "/health/live");
        stream.join().unwrap()
    });
    assert!(stream.starts_with("HTTP/1.1 200 "), "{stream}");
    // Services lead to ports of the pods that they select.
    for name in ["pagoda", "redis", "smg"] {
        let service = &object(objects, "Service", name)["spec"];
        let deployment = object(objects, "Deployment", name);
        let labels = deployment["spec"]["template"]["metadata"]["labels"].as_object().unwrap();
        let selector = service["selector"].as_object().unwrap();
        assert!(selector.iter().all(|(label, value)| labels.get(label) == Some(value)), "{name}");
        let ports = container(deployment)["ports"].as_array().unwrap();
        assert!(ports.iter().any(|port| port["name"] == service["ports"][0]["targetPort"]), "{name}");
    }
    let smg = texts(&container(object(objects, "Deployment", "smg"))["args"]);
    check_smg(&smg);
    assert_eq!(number(&smg, "--service-discovery-port"), number(&args, "--port"));
    assert_eq!(*smg.last().unwrap(), format!("app={}", pod["metadata"]["labels"]["app"].as_str().unwrap()));
    assert_eq!(format!("{}:latest", stages()[1]), pagoda["image"].as_str().unwrap());
}

#[test]
fn the_pool_of_llm_d_is_that_of_the_manifests() {
    let pool = read("kubernetes", &text("kubernetes-llm-d.yaml"));
    let pool = pool.as_array().unwrap();
    let objects = read("kubernetes", &text("kubernetes.yaml"));
    let deployment = object(objects.as_array().unwrap(), "Deployment", "pagoda");
    let labels = &deployment["spec"]["template"]["metadata"]["labels"];
    let spec = &object(pool, "InferencePool", "pagoda")["spec"];
    assert_eq!(spec["selector"]["matchLabels"]["app"], labels["app"]);
    assert_eq!(spec["targetPorts"][0]["number"], container(deployment)["ports"][0]["containerPort"]);
    let map = object(pool, "ConfigMap", spec["endpointPickerRef"]["name"].as_str().unwrap());
    assert_eq!(map["data"]["llm-d.yaml"], text("llm-d.yaml"));
    let config = read("documents", &text("llm-d.yaml"));
    let plugins = config[0]["plugins"].as_array().unwrap();
    let engines = plugins.iter().find_map(|plugin| plugin["parameters"]["engineConfigs"].as_array()).unwrap();
    assert_eq!(engines[0]["name"], labels["llm-d.ai/engine-type"]);
}
