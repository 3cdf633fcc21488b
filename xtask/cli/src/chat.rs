//! `pagoda chat`: a conversation in a terminal.
//!
//! The conversation stays in KV blocks, so that each turn computes its new tokens alone. Without a terminal, each line
//! of standard input is a message or a command, and answers alone go to standard output.

mod command;
mod document;
mod history;
mod lines;
mod typed;

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, anyhow};
use clap::FromArgMatches as _;
use pagoda::usage::{TierUse, readable};
use pagoda::{
    Demand, Engine, Event, FinishReason, Finished, Model, Preemption, Registry, Request, error_chain,
};

use crate::cli::{ChatArgs, Defaults, EngineArgs, SamplingArgs, SparseArg};
use crate::interrupt::Stop;
use crate::open_model::open_model;
use crate::progress::PrefillBar;
use crate::{auto, generate, model};
use command::{Command, HELP, Input};
use history::{ChatPrompt, History};
use lines::Lines;
use typed::Typed;

/// Runs the command.
///
/// # Errors
/// Errors of the model and the device. What is wrong with a line is told, and the conversation goes on.
pub fn run(args: &ChatArgs, registry: &Registry) -> Result<()> {
    let model = open_model(&args.engine)?;
    model.tokenizer()?;
    let history = match &args.load {
        Some(path) => History::load(path)?,
        None => History::new(args.system.clone()),
    };
    let history = history.with_variables(args.template.variables());
    let engine = open(args, &args.engine, &model)?;
    let mut chat = Chat {
        args,
        model: &model,
        sparse: args.engine.sparse.clone(),
        sampling: args.sampling.clone(),
        retries: 0,
        documents: String::new(),
        engine,
        history,
    };
    let mut lines = Lines::open()?;
    let mut terminal = Terminal { typed: Typed::default(), stop: Stop::default() };
    let typed = terminal.typed.clone();
    terminal.stop = Stop::listen(chat.engine.decoder().gpu(), move || typed.restore())?;
    if lines.is_terminal() {
        eprintln!("Ctrl-C ends an answer, Ctrl-D the chat; /help lists the commands");
    }
    if let Some(text) = first_message(args)? {
        chat.message(&text, &terminal, &mut lines)?;
    }
    while let Some(line) = lines.next()? {
        match Input::read(&line) {
            Ok(Input::Nothing) => {}
            Ok(Input::Message(text)) => chat.message(text, &terminal, &mut lines)?,
            Ok(Input::Command(Command::Retry)) => chat.retry(&terminal, &mut lines)?,
            Ok(Input::Command(Command::Exit)) => break,
            Ok(Input::Command(Command::Sparse(policy))) if !policy.is_empty() => {
                match SparseArg::read(registry, policy) {
                    Ok(sparse) => chat = chat.with_policy(sparse)?,
                    Err(error) => tell(&error),
                }
            }
            Ok(Input::Command(command)) => chat.obey(&command).unwrap_or_else(|error| tell(&error)),
            Err(error) => tell(&error),
        }
    }
    Ok(())
}

/// The message that flags give.
fn first_message(args: &ChatArgs) -> Result<Option<String>> {
    match &args.prompt_file {
        Some(path) => generate::read_text(path).map(Some),
        None => Ok(args.prompt.clone()),
    }
}

/// An engine with room for the conversation.
fn open(args: &ChatArgs, engine: &EngineArgs, model: &Arc<Model>) -> Result<Engine> {
    let context = model.config.context_length;
    let tokens = args.context.map_or(context, |tokens| tokens.min(context));
    model::note_context(engine, args.context, model);
    model::engine(engine, model, Demand::one(tokens.into()), Preemption::Recompute)
}

/// Prints the error of a line.
fn tell(error: &anyhow::Error) {
    eprintln!("{}", error_chain::joined(error.as_ref()));
}

/// The keys of a terminal during an answer.
struct Terminal {
    typed: Typed,
    stop: Stop,
}

struct Chat<'a> {
    args: &'a ChatArgs,
    model: &'a Arc<Model>,
    sparse: Option<SparseArg>,
    sampling: SamplingArgs,
    /// Number of answers by `/retry`, each with a seed of its own.
    retries: u64,
    /// Text of files, which goes before the next message.
    documents: String,
    engine: Engine,
    history: History,
}

impl Chat<'_> {
    /// Answers a message.
    ///
    /// # Errors
    /// Errors of the device.
    fn message(&mut self, text: &str, terminal: &Terminal, lines: &mut Lines) -> Result<()> {
        let text = &format!("{}{text}", self.documents);
        let prompt = match self.submit(text) {
            Ok(prompt) => prompt,
            Err(error) => {
                tell(&error);
                return Ok(());
            }
        };
        self.documents.clear();
        let Terminal { typed, stop } = terminal;
        if lines.is_terminal() {
            typed.hide();
        }
        stop.begin(!self.history.has_turns());
        let answered = self.answer(stop);
        stop.end();
        lines.begin_with(typed.show());
        let (answer, end) = answered?;
        if !self.args.engine.quiet {
            eprintln!("{}", turn_line(&end));
        }
        self.history.answered(self.model, text, prompt, Answer { text: answer, ids: end.output })
    }

    /// Answers the last message again.
    ///
    /// # Errors
    /// Errors of the device.
    fn retry(&mut self, terminal: &Terminal, lines: &mut Lines) -> Result<()> {
        let Some(text) = self.history.retract() else {
            tell(&anyhow!("there is no message to answer again"));
            return Ok(());
        };
        self.retries += 1;
        self.message(&text, terminal, lines)
    }

    /// Queues the conversation with a message at its end.
    fn submit(&mut self, text: &str) -> Result<ChatPrompt> {
        let prompt = self.history.prompt(self.model, text)?;
        let mut request = Request::new(prompt.ids.clone()).max_tokens(self.args.max_tokens);
        request.sampling = self.sampling.sampling(self.model, Defaults::OfModel)?;
        request.sampling.seed = request.sampling.seed.wrapping_add(self.retries);
        request.stop.clone_from(&self.args.stop);
        request.salt.clone_from(&self.args.salt);
        self.engine.submit(request)?;
        Ok(prompt)
    }

    /// Prints the answer as it comes. Returns its text and its end.
    fn answer(&mut self, stop: &Stop) -> Result<(String, Finished)> {
        let mut out = io::stdout().lock();
        let mut answer = String::new();
        let mut bar = PrefillBar::new(&self.engine, self.args.engine.quiet, self.args.engine.verbose);
        loop {
            let mut events = self.engine.step()?;
            if stop.asked() {
                let running = self.engine.scheduler().running().to_vec();
                events.extend(running.into_iter().flat_map(|seq| self.engine.cancel(seq)));
            }
            for event in bar.pass(&self.engine, events) {
                answer.push_str(event.text());
                out.write_all(event.text().as_bytes())?;
                out.flush()?;
                if let Event::Finished(end) = event {
                    writeln!(out)?;
                    return Ok((answer, *end));
                }
            }
        }
    }

    fn obey(&mut self, command: &Command<'_>) -> Result<()> {
        match *command {
            Command::Help => eprintln!("{HELP}"),
            Command::Read(path) => eprintln!("{}", self.read(Path::new(path))?),
            Command::Set { name, value } => eprintln!("{}", self.set(name, value)?),
            Command::New => self.history.clear(),
            Command::System(text) => self.history.set_system(text),
            Command::Save(path) => {
                self.history.save(Path::new(path))?;
                eprintln!("saved {} messages to {path}", self.history.len());
            }
            Command::Load(path) => {
                self.history = History::load(Path::new(path))?.with_variables(self.args.template.variables());
                eprintln!("{} messages from {path}", self.history.len());
            }
            Command::Sparse(_) => eprintln!("{}", self.policy()),
            Command::Stats => eprintln!("{}", self.stats()?),
            Command::Exit | Command::Retry => {}
        }
        Ok(())
    }

    /// Puts the text of a file before the next message. Returns a message about the file.
    fn read(&mut self, path: &Path) -> Result<String> {
        let text = document::read(path)?;
        let tokens = self.model.tokenizer()?.encode(&text, false)?.len();
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
        self.documents += &format!("<document name=\"{name}\">\n{}\n</document>\n\n", text.trim_end());
        Ok(format!("{} goes before the next message: {tokens} tokens", path.display()))
    }

    /// Sets a parameter of the sampler. Returns a text with all parameters that then apply.
    fn set(&mut self, name: &str, value: &str) -> Result<String> {
        if !name.is_empty() {
            let flag = format!("--{}={value}", name.trim_start_matches('-'));
            let matches = command::parameters().try_get_matches_from([flag]).map_err(|error| {
                let told = error.to_string();
                anyhow!(
                    "{}",
                    told.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
                )
            })?;
            self.sampling.update_from_arg_matches(&matches)?;
        }
        let sampling = self.sampling.sampling(self.model, Defaults::OfModel)?;
        Ok(format!(
            "temperature {}, top-k {}, top-p {}, min-p {}, seed {}, repetition-penalty {}, presence-penalty {}, \
             frequency-penalty {}, dry-multiplier {}, min-tokens {}",
            sampling.temperature,
            sampling.top_k,
            sampling.top_p,
            sampling.min_p,
            sampling.seed.wrapping_add(self.retries),
            sampling.penalties.repetition,
            sampling.penalties.presence,
            sampling.penalties.frequency,
            sampling.dry.multiplier,
            sampling.min_tokens,
        ))
    }

    /// The name of the policy.
    fn policy(&self) -> String {
        let policy = self.sparse.as_ref().and_then(SparseArg::policy);
        policy.map_or_else(|| "full".to_owned(), |sparse| sparse.spec.to_string())
    }

    /// The conversation with another sparse-attention policy. Its KV is computed again, because it depends on the policy. If
    /// the engine refuses the policy, a message says why, and nothing changes.
    ///
    /// # Errors
    /// Errors of the device.
    fn with_policy(self, sparse: SparseArg) -> Result<Self> {
        let Self { args, model, sparse: old, engine, sampling, retries, documents, history } = self;
        // There may be no room for the weights of two.
        drop(engine);
        let reopen = |sparse: Option<SparseArg>| -> Result<_> {
            let engine = EngineArgs { sparse, ..args.engine.clone() };
            auto::settle(&engine, model)?;
            Ok((open(args, &engine, model)?, engine.sparse))
        };
        let (engine, sparse) = match reopen(Some(sparse)) {
            Ok(opened) => opened,
            Err(error) => {
                tell(&error);
                reopen(old)?
            }
        };
        Ok(Self { args, model, sparse, engine, sampling, retries, documents, history })
    }

    fn stats(&mut self) -> Result<String> {
        let snapshot = self.engine.snapshot();
        let (blocks, prefix, totals) = (snapshot.blocks, snapshot.prefix, snapshot.totals);
        let mut lines = vec![
            format!("conversation  {} messages, {} tokens", self.history.len(), self.history.num_tokens()),
            format!(
                "KV blocks     {} of {} hold reusable prefixes, {} tokens and {} each",
                blocks.cached,
                blocks.total,
                blocks.block_size,
                readable(blocks.block_bytes)
            ),
            format!("prefix cache  {} of {} prompt tokens found", prefix.hit_tokens, prefix.queried_tokens),
            format!(
                "tokens        {} of prompts computed, {} generated, {} steps",
                totals.prefill_tokens, totals.generated_tokens, totals.steps
            ),
            format!("attention     {}", self.policy()),
        ];
        let tiers = self.engine.tier_use()?;
        if tiers != TierUse::default() {
            lines.push(tiers.to_string());
        }
        Ok(lines.join("\n"))
    }
}

/// An answer of the model.
#[derive(Debug, Clone, PartialEq)]
struct Answer {
    text: String,
    /// All generated tokens, including the one that ended the answer.
    ids: Vec<u32>,
}

/// A line about the cost of a turn.
fn turn_line(end: &Finished) -> String {
    let usage = &end.usage;
    let cached = usage.cached.total();
    let computed = usage.prompt_tokens - cached;
    let timing = generate::timing(computed, &end.output, usage.clock);
    let speed = timing.decode_tok_s.map_or(String::new(), |rate| format!(" at {rate:.1} tok/s"));
    let sparse = if usage.sparse.policy == "full" { String::new() } else { format!("; {}", usage.sparse) };
    let first = timing.ttft_ms.map_or("none".to_owned(), |ms| format!("after {ms:.0} ms"));
    let why = match &end.reason {
        FinishReason::Length => "; no more tokens were allowed".to_owned(),
        FinishReason::Cancelled => "; ended by Ctrl-C".to_owned(),
        reason => reason.error().map_or_else(String::new, |error| format!("; failed: {error}")),
    };
    format!(
        "[{cached} prompt tokens cached, {computed} new; first token {first}; {} generated{speed}{sparse}{why}]",
        usage.generated_tokens,
    )
}
