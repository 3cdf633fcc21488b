//! The live page in headless Chromium, used as a person would. Screenshots are left in the target's folder `tmp/page`.
#![cfg(target_os = "linux")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use pagoda::{Registry, Shutdown, Sparse};
use serde_json::{Value, json};
use serve::{ApiKey, Options};
use tempfile::TempDir;

use crate::client::{post_bytes, send};
use crate::fixture::{MODEL, Served, Setup, start, until};

/// Chromium without a window and without a word to anybody.
const FLAGS: [&str; 10] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--window-size=1440,900",
];

/// The Enter key, as WebDriver writes it.
const ENTER: &str = "\u{e007}";

/// A browser that ChromeDriver drives. The few commands of WebDriver that are needed are written here, since its client
/// crates bring twenty packages, many of them old.
struct Browser {
    driver: Child,
    port: u16,
    session: String,
    _profile: TempDir,
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The browser ends with its session.
        let _ = self.request("DELETE", "", &Value::Null);
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

impl Browser {
    fn open() -> Self {
        let mut driver = Command::new("chromedriver")
            .arg("--port=0")
            .stdout(Stdio::piped())
            .spawn()
            .expect("`cargo xtask test` sets Chromium and its driver up");
        let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines().map_while(Result::ok);
        let port = lines.find_map(|line| {
            line.split_once("started successfully on port ")?.1.trim_end_matches('.').parse().ok()
        });
        thread::spawn(move || lines.for_each(drop));
        let profile = tempfile::tempdir().unwrap();
        let profile_flag = format!("--user-data-dir={}", profile.path().display());
        let flags: Vec<&str> = FLAGS.into_iter().chain([profile_flag.as_str()]).collect();
        let capabilities = json!({
            "goog:chromeOptions": { "args": flags },
            "goog:loggingPrefs": { "browser": "ALL" },
        });
        let port = port.expect("ChromeDriver says where it listens");
        let mut browser = Self { driver, port, session: String::new(), _profile: profile };
        let session = browser.own("", json!({ "capabilities": { "alwaysMatch": capabilities } }));
        browser.session = format!("/{}", session["sessionId"].as_str().unwrap());
        browser
    }

    /// Calls a command of the session.
    fn request(&self, method: &str, command: &str, body: &Value) -> (u16, Value) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let session = &self.session;
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        write!(
            stream,
            "{method} /session{session}{command} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        // ChromeDriver leaves the connection open.
        let mut reader = BufReader::new(stream);
        let mut line = || {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            line.trim_end().to_lowercase()
        };
        let status = line().split(' ').nth(1).expect("a status line").parse().unwrap();
        let heads: Vec<String> =
            std::iter::from_fn(|| Some(line()).filter(|line| !line.is_empty())).collect();
        let length = heads.iter().find_map(|head| head.strip_prefix("content-length:")).expect("a length");
        let mut body = vec![0; length.trim().parse().unwrap()];
        reader.read_exact(&mut body).unwrap();
        let mut reply: Value = serde_json::from_slice(&body).unwrap();
        (status, reply["value"].take())
    }

    #[track_caller]
    fn own(&self, command: &str, body: Value) -> Value {
        let (status, value) = self.request("POST", command, &body);
        assert_eq!(status, 200, "{command} {body}: {value}");
        value
    }

    fn go(&self, served: &Served) {
        self.own("/url", json!({ "url": format!("http://{}/", served.address) }));
    }

    #[track_caller]
    fn run(&self, script: &str) -> Value {
        self.own("/execute/sync", json!({ "script": script, "args": [] }))
    }

    /// Waits until an expression of the page's is true.
    #[track_caller]
    fn until(&self, expression: &str) {
        let begin = Instant::now();
        while self.run(&format!("return Boolean({expression})")) != json!(true) {
            let text = self.run("return document.body.innerText");
            assert!(begin.elapsed() < Duration::from_secs(60), "never {expression}: {text}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// The path of an element.
    #[track_caller]
    fn find(&self, css: &str) -> String {
        let found = self.own("/element", json!({ "using": "css selector", "value": css }));
        let id = found.as_object().and_then(|found| found.values().next()?.as_str());
        format!("/element/{}", id.expect("an element has an id"))
    }

    #[track_caller]
    fn write(&self, css: &str, text: &str) {
        self.own(&format!("{}/value", self.find(css)), json!({ "text": text }));
    }

    #[track_caller]
    fn press(&self, css: &str) {
        self.own(&format!("{}/click", self.find(css)), json!({}));
    }

    /// Sets a field.
    fn set(&self, id: &str, value: &str) {
        self.run(&format!("document.getElementById('{id}').value = '{value}'"));
    }

    /// Takes pictures: light and dark, wide and narrow.
    fn pictures(&self, name: &str) {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("page");
        fs::create_dir_all(&folder).unwrap();
        for (size, width, height) in [("wide", 1440, 900), ("narrow", 400, 860)] {
            let metrics =
                json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
            self.own(
                "/goog/cdp/execute",
                json!({ "cmd": "Emulation.setDeviceMetricsOverride", "params": metrics }),
            );
            for scheme in ["light", "dark"] {
                let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
                let media =
                    json!({ "cmd": "Emulation.setEmulatedMedia", "params": { "features": features } });
                self.own("/goog/cdp/execute", media);
                let panes: &[&str] = if size == "narrow" { &["chat", "engine"] } else { &[""] };
                for pane in panes {
                    if !pane.is_empty() {
                        self.press(&format!("[data-show={pane}]"));
                    }
                    thread::sleep(Duration::from_millis(350));
                    let (_, picture) = self.request("GET", "/screenshot", &Value::Null);
                    let picture = BASE64.decode(picture.as_str().unwrap()).unwrap();
                    fs::write(folder.join(format!("{name}-{size}{pane}-{scheme}.png")), picture).unwrap();
                    let spilt = "document.documentElement.scrollWidth - innerWidth";
                    assert_eq!(
                        self.run(&format!("return {spilt}")),
                        json!(0),
                        "{name} {size} {pane} is too wide"
                    );
                }
            }
        }
        let wide = json!({ "cmd": "Emulation.clearDeviceMetricsOverride", "params": {} });
        self.own("/goog/cdp/execute", wide);
        self.run("document.body.dataset.pane = 'chat'");
    }

    /// Checks that nothing went wrong that only the console tells, such as what the page's policy forbids.
    #[track_caller]
    fn assert_quiet(&self, expected: usize) {
        let log = self.own("/se/log", json!({ "type": "browser" }));
        let errors: Vec<&Value> =
            log.as_array().unwrap().iter().filter(|line| line["level"] == "SEVERE").collect();
        assert_eq!(errors.len(), expected, "{errors:?}");
    }
}

const ANSWERED: &str = "!document.querySelector('.open') && document.getElementById('stop').hidden";

/// Chats: the second turn finds the first.
fn two_turns(browser: &Browser) {
    browser.set("temperature", "0");
    browser.set("max_tokens", "24");
    browser.set("system", "Answer as briefly as you can, whatever the question is about.");
    for (text, turns) in [("Why is the sky blue?", 1), ("And the sea? `x` < y", 2)] {
        browser.write("#prompt", text);
        browser.write("#prompt", ENTER);
        browser
            .until(&format!("{ANSWERED} && document.querySelectorAll('.message.answer').length === {turns}"));
        let note = browser.run("return [...document.querySelectorAll('.answer .note')].pop().textContent");
        let note = note.as_str().unwrap();
        assert!(note.contains(" prompt tokens, ") || note.contains("maximum number"), "{note}");
    }
    let said = browser.run("return document.querySelector('.message.answer:last-child').textContent");
    let cached =
        said.as_str().unwrap().split(" cached").next().unwrap().rsplit(' ').next().unwrap().to_owned();
    assert!(cached.parse::<u32>().unwrap() >= 32, "{said}");
    assert_eq!(
        browser.run("return document.querySelectorAll('.user')[1].textContent"),
        json!("And the sea? `x` < y")
    );
}

/// A chat outlives its tab, and its last question can be asked again.
fn chats_are_kept(browser: &Browser, served: &Served) {
    browser.go(served);
    browser.until("document.querySelectorAll('.message.answer').length === 2");
    browser.run("document.querySelector('#chats summary').click()");
    browser.until("document.querySelectorAll('#chat-list li').length === 1");
    browser.run("document.querySelector('#chats summary').click()");
    let text = "document.querySelector('.message.answer:last-child .text')?.textContent";
    let before = browser.run(&format!("return {text}"));
    let again =
        "[...document.querySelectorAll('.actions button')].find((made) => made.textContent === 'Try again')";
    browser.set("temperature", "0");
    browser.set("max_tokens", "24");
    browser.set("system", "Answer as briefly as you can, whatever the question is about.");
    browser.run(&format!("{again}.click()"));
    browser.until(&format!(
        "{ANSWERED} && document.querySelectorAll('.message.answer').length === 2 && {again}"
    ));
    assert_eq!(browser.run(&format!("return {text}")), before);
}

#[test]
fn a_person_chats_and_watches_the_engine() {
    let sparse = Sparse::new(&Registry::builtin(), &"quest:page_budget=2,block_size=16".parse().unwrap());
    // With this seed the answer that is stopped does not end before.
    let options = Options::new(Arc::clone(&MODEL), "tiny").seed(1);
    let served = start(Setup { sparse: Some(sparse.unwrap()), options, ..Setup::default() });
    let browser = Browser::open();
    browser.go(&served);
    browser.until("document.getElementById('status').dataset.state === 'live'");
    assert_eq!(browser.run("return document.getElementById('model').textContent"), json!("tiny"));
    browser.pictures("empty");

    two_turns(&browser);
    chats_are_kept(&browser, &served);

    // Requests of others fill the timeline and the map.
    let others: Vec<_> = (0..6_u32)
        .map(|other| {
            let prompt: Vec<u32> =
                (0..150).map(|at| if at < 64 { at % 90 } else { (at * (other + 3)) % 97 }).collect();
            let body = json!({ "prompt": prompt, "max_tokens": 850, "ignore_eos": true, "stream": true });
            send(&served, &post_bytes("/v1/completions", body.to_string().as_bytes()))
        })
        .collect();
    browser.until("document.querySelectorAll('.row:not(.ended)').length === 6");
    browser.until("JSON.parse(document.getElementById('map').dataset.cells).shared >= 4");
    browser.until("JSON.parse(document.getElementById('map').dataset.cells).held > 60");
    let cells = browser.run("return JSON.parse(document.getElementById('map').dataset.cells)");
    let total: u64 = cells.as_object().unwrap().values().map(|count| count.as_u64().unwrap()).sum();
    let blocks = served.handle.snapshot().blocks;
    assert_eq!(total, u64::from(blocks.total), "{cells}: a cell a block");

    // One of them is chosen by keyboard.
    browser.write(".row:nth-child(3)", ENTER);
    browser.until("document.querySelector('.row:nth-child(3)').getAttribute('aria-selected') === 'true'");
    browser.until("!document.getElementById('reads').hidden");
    let figures = browser.run("return document.getElementById('reads-figures').textContent");
    assert!(figures.as_str().unwrap().contains("certified mass"), "{figures}");
    browser.pictures("load");

    // An answer is stopped, and its request ends.
    browser.set("max_tokens", "900");
    browser.set("temperature", "1.5");
    browser.write("#prompt", "Count to a million.");
    browser.press("#send");
    browser.until(&format!("{ANSWERED} || document.querySelector('.open .text')?.textContent.length > 2"));
    let stop = "const stop = document.getElementById('stop'); const shown = stop.offsetParent !== null;";
    let stopped = browser.run(&format!("{stop} if (shown) stop.click(); return shown"));
    assert!(stopped.as_bool().unwrap(), "the answer ended before it could be stopped");
    browser.until(ANSWERED);
    drop(others);
    until("nothing runs", || served.handle.snapshot().running.is_empty());
    browser.until("document.querySelectorAll('.row:not(.ended)').length === 0");
    browser.press("#new-chat");
    browser.until("document.querySelectorAll('.message').length === 0");
    browser.assert_quiet(0);

    // What is shown of a server that is gone is grey, and dated.
    served.handle.shutdown(Shutdown::Now).wait();
    browser.until("document.getElementById('engine').classList.contains('stale')");
    let status = browser.run("return document.getElementById('status').textContent");
    assert!(status.as_str().unwrap().ends_with(", trying again"), "{status}");
    browser.pictures("gone");
}

#[test]
fn a_key_is_asked_for_where_the_server_wants_one() {
    let mut options = Options::new(Arc::clone(&MODEL), "tiny");
    options.api_keys = vec![ApiKey::new("sesame")];
    let served = start(Setup { options, ..Setup::default() });
    let browser = Browser::open();
    browser.go(&served);
    browser.until("document.getElementById('key-dialog').open");
    browser.write("#key", "wrong");
    browser.press("#key-dialog button");
    browser
        .until("!document.getElementById('key-error').hidden && document.getElementById('key-dialog').open");
    browser.write("#key", "sesame");
    browser.press("#key-dialog button");
    browser.until("document.getElementById('status').dataset.state === 'live'");
    // The two refusals, and nothing else.
    browser.assert_quiet(2);
}
