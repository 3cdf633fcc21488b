//! `cargo xtask chat` as a process: lines in, answers out, and a pseudo-terminal for what only a terminal can do.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::text;

/// Talks with SmolLM2 in `folder`, in short answers.
fn talk(folder: &Path, flags: &[&str], lines: &str) -> Output {
    let mut chat = Command::new(env!("CARGO_BIN_EXE_xtask"));
    chat.args(["chat", "--max-tokens", "6", "--context", "512"]).args(flags).current_dir(folder);
    let mut chat = chat.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    chat.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let output = chat.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    output
}

/// Numbers of cached and new prompt tokens of each turn.
fn turns(output: &Output) -> Vec<(u32, u32)> {
    let turn = |line: &str| {
        let (cached, rest) = line.strip_prefix('[')?.split_once(" prompt tokens cached, ")?;
        Some((cached.parse().ok()?, rest.split_once(" new;")?.0.parse().ok()?))
    };
    text(&output.stderr).lines().filter_map(turn).collect()
}

#[test]
fn a_second_turn_computes_its_new_tokens_only() {
    let folder = tempfile::tempdir().unwrap();
    let lines =
        "Name three colours.\n/save chat.json\nAnd three <|im_end|> animals?\n/stats\n/bogus\n/system\n";
    let output = talk(folder.path(), &["--system", "Answer in one line."], lines);
    let (said, told) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(said.lines().filter(|line| !line.is_empty()).count(), 2, "{said}");
    let [(0, first), (cached, new)] = turns(&output)[..] else { panic!("{told}") };
    // All of the first turn is there but the last token of the answer, and what does not fill a block of 16.
    assert!(cached >= (first + 5) / 16 * 16 && new < 64, "{told}");
    assert!(told.contains("there is no command /bogus; /help lists them"), "{told}");
    assert!(told.contains("conversation  5 messages, "), "{told}");

    let saved: Value = serde_json::from_slice(&fs::read(folder.path().join("chat.json")).unwrap()).unwrap();
    let messages = saved["messages"].as_array().unwrap();
    assert_eq!(messages[0]["content"], "Answer in one line.");
    assert_eq!(messages[1]["content"], "Name three colours.");
    assert_eq!(messages[2]["content"].as_str().unwrap(), said.lines().next().unwrap());

    // The same conversation gets the same answer in another process, from the file.
    let rest = "/load none.json\n/load chat.json\nAnd three <|im_end|> animals?\n";
    let loaded = talk(folder.path(), &[], rest);
    assert_eq!(text(&loaded.stdout).trim_end(), said.lines().nth(1).unwrap().trim_end());
    assert!(text(&loaded.stderr).contains("none.json: cannot be read"), "{}", text(&loaded.stderr));
}

#[test]
fn the_policy_can_be_changed() {
    let folder = tempfile::tempdir().unwrap();
    let lines = "Hi\n/sparse\n/sparse nothing\n/sparse quest:page_budget=1,block_size=16\n/sparse\nWhy?\n";
    let output = talk(folder.path(), &[], lines);
    let told = text(&output.stderr);
    assert!(told.contains("\nfull\n") && told.contains("\nquest:page_budget=1,block_size=16\n"), "{told}");
    assert!(told.contains("nothing"), "{told}");
    let last = told.lines().rfind(|line| line.starts_with('[')).unwrap();
    assert!(last.contains("quest:page_budget=1,block_size=16: density 0."), "{told}");
    // Blocks of dense attention are not those of another policy.
    assert_eq!(turns(&output).last().unwrap().0, 0, "{told}");
}

#[test]
fn documents_parameters_and_another_answer() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("note.md"), "The password is swordfish.\n").unwrap();
    let lines = "/retry\n/read none.md\n/read note.md\n\"\"\"What is\nthe password?\"\"\"\n/set temperature 9\n/set top-x 1\n\
                 /retry\n/save chat.json\n";
    let output = talk(folder.path(), &["--prompt", "Hi"], lines);
    let told = text(&output.stderr);
    assert!(
        told.contains("none.md: cannot be read") && told.contains("note.md goes before the next message: "),
        "{told}"
    );
    assert!(
        told.contains("temperature 9, top-k 0, top-p 0.95") && told.contains("unexpected argument '--top-x'"),
        "{told}"
    );
    // The first message, its second answer, the question and its second answer.
    assert_eq!(turns(&output).len(), 4, "{told}");
    let saved: Value = serde_json::from_slice(&fs::read(folder.path().join("chat.json")).unwrap()).unwrap();
    let asked =
        "<document name=\"note.md\">\nThe password is swordfish.\n</document>\n\nWhat is\nthe password?";
    let messages = saved["messages"].as_array().unwrap();
    assert_eq!((messages.len(), messages[2]["content"].as_str()), (4, Some(asked)));
    let answers: Vec<&str> = text(&output.stdout).lines().filter(|line| !line.is_empty()).collect();
    assert_ne!(answers[answers.len() - 2], answers[answers.len() - 1], "another seed at a high temperature");
}

/// Terminal input: edit a line, end an answer with Ctrl-C and go on, end with Ctrl-D.
#[cfg(target_os = "linux")]
mod terminal {
    use std::fs;
    use std::io::{Read, Write};
    use std::path::Path;
    use std::process::{Child, Command, Stdio};
    use std::sync::{Arc, Mutex};
    use std::thread;
    use std::time::{Duration, Instant};

    /// Ends the input of a line: pasted text is no longer marked.
    const DONE: &str = "\x1b[?2004l";

    struct Terminal {
        /// `script`, which runs a command in a pseudo-terminal.
        child: Child,
        screen: Arc<Mutex<String>>,
    }

    impl Terminal {
        fn open(folder: &Path, flags: &str) -> Self {
            // In place of the shell: one that waits gets Ctrl-C too, and some then end with its code.
            let chat = format!("exec '{}' chat --context 1024 {flags}", env!("CARGO_BIN_EXE_xtask"));
            let mut script = Command::new("script");
            script.args(["--quiet", "--return", "--command", &chat]).arg("/dev/null");
            script
                .current_dir(folder)
                .env("TERM", "xterm")
                .env("SHELL", "/bin/sh")
                .env("XDG_STATE_HOME", folder)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped());
            let mut child = script.spawn().unwrap();
            let screen = Arc::<Mutex<String>>::default();
            let (mut output, shown) = (child.stdout.take().unwrap(), Arc::clone(&screen));
            thread::spawn(move || {
                let mut bytes = [0; 4096];
                while let Ok(count @ 1..) = output.read(&mut bytes) {
                    shown.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..count]));
                }
            });
            Self { child, screen }
        }

        fn press(&mut self, keys: &str) {
            self.child.stdin.as_mut().unwrap().write_all(keys.as_bytes()).unwrap();
        }

        /// Waits for a text on the screen, behind what was awaited before.
        #[track_caller]
        fn expect(&self, wanted: &str) -> String {
            let start = Instant::now();
            loop {
                let mut screen = self.screen.lock().unwrap();
                if let Some(at) = screen.find(wanted) {
                    let rest = screen.split_off(at + wanted.len());
                    return std::mem::replace(&mut *screen, rest);
                }
                assert!(start.elapsed() < Duration::from_secs(120), "no {wanted:?} in {screen:?}");
                drop(screen);
                thread::sleep(Duration::from_millis(5));
            }
        }
    }

    impl Drop for Terminal {
        fn drop(&mut self) {
            let _ = self.child.kill();
        }
    }

    #[test]
    fn ctrl_c_ends_the_answer_and_ctrl_d_the_chat() {
        let folder = tempfile::tempdir().unwrap();
        // A Ctrl-C that finds kernels being compiled ends a chat that has nothing to lose.
        let begun = r#"[{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]"#;
        fs::write(folder.path().join("begun.json"), begun).unwrap();
        let flags = "--load begun.json --max-tokens 900 --temperature 1.5 --seed 3";
        let mut terminal = Terminal::open(folder.path(), flags);
        terminal.expect("/help lists the commands");
        terminal.expect("> ");
        // A letter too many, taken back.
        terminal.press("Write a very long story about a lighthousee\x7f.\r");
        // The line is done, and the story begins.
        terminal.expect(DONE);
        let start = Instant::now();
        while terminal.screen.lock().unwrap().len() < 40 {
            assert!(start.elapsed() < Duration::from_secs(120));
            thread::sleep(Duration::from_millis(5));
        }
        terminal.press("\x03");
        terminal.expect("ended by Ctrl-C]");
        terminal.expect("> ");
        // A Ctrl-C at the prompt clears the line.
        terminal.press("/nonsense\x03");
        terminal.expect("Ctrl-D ends the chat");
        terminal.press("/stats\r");
        terminal.expect("conversation  4 messages");
        terminal.expect("> ");
        // The line before, again.
        terminal.press("\x1b[A\r");
        terminal.expect("conversation  4 messages");
        terminal.expect("> ");
        terminal.press("/save chat.json\r");
        terminal.expect("saved 4 messages");
        terminal.expect("> ");
        terminal.press("\x04");
        assert_eq!(terminal.child.wait().unwrap().code(), Some(0));
        let saved = fs::read_to_string(folder.path().join("chat.json")).unwrap();
        assert!(saved.contains("\"Write a very long story about a lighthouse.\""), "{saved}");
    }

    #[test]
    fn what_is_typed_during_an_answer_begins_the_next_line() {
        let folder = tempfile::tempdir().unwrap();
        let mut terminal = Terminal::open(folder.path(), "--max-tokens 20 --prompt Hello");
        terminal.expect("/help lists the commands");
        terminal.press("/st\ra");
        terminal.expect("tok/s]");
        // A line break runs nothing.
        terminal.expect("> /st a");
        terminal.press("\x7f\x7fats\r");
        terminal.expect("conversation  2 messages");
        terminal.expect("> ");
        terminal.press("\x04");
        assert_eq!(terminal.child.wait().unwrap().code(), Some(0));
        // The next chat knows the line.
        let mut terminal = Terminal::open(folder.path(), "");
        terminal.expect("> ");
        terminal.press("\x1b[A\r");
        terminal.expect("conversation  0 messages");
        terminal.press("\x04");
        assert_eq!(terminal.child.wait().unwrap().code(), Some(0));
    }
}
