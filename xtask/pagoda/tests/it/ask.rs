//! Texts of answers, whole and in pieces.

use std::sync::Arc;

use futures_util::StreamExt as _;
use pagoda::{
    Chat, EngineHandle, EngineOptions, Error, FinishReason, KvDtype, Message, Sampling, Shutdown, TokenMask,
};

use crate::text::model;

/// Two sequences of up to 1,024 tokens of the tiny Llama.
fn open() -> EngineHandle {
    let (folder, _) = model();
    let options = EngineOptions::new().kv_dtype(KvDtype::F32).max_context(Some(1024)).chunk(32);
    pagoda::open(folder.path()).options(options).sequences(2).spawn().unwrap()
}

/// A conversation whose answer is not empty.
fn chat() -> Chat {
    let mut chat = Chat::user("a b").system("c").then("d", "e f").max_tokens(30);
    chat.request.ignore_eos = true;
    chat.sampling(Sampling::default().temperature(1.0).seed(9))
}

#[test]
fn an_answer_is_the_same_whole_and_in_pieces() {
    let engine = open();
    let messages = [("system", "c"), ("user", "a b"), ("assistant", "d"), ("user", "e f")];
    let messages = messages.map(|(role, text)| Message::new(role, text));
    let ids = engine.model().chat_ids(&messages).unwrap();
    let mut request = chat().request;
    request.prompt = ids;
    let events = engine.submit(request).unwrap().blocking().map(Result::unwrap);
    let expected: String = events.map(|event| event.text().to_owned()).collect();
    assert!(!expected.is_empty());

    assert_eq!(engine.ask(chat()).wait().unwrap(), expected);
    assert_eq!(pollster::block_on(engine.ask(chat())).unwrap(), expected);
    let blocking: Vec<String> = engine.ask(chat()).stream().blocking().map(Result::unwrap).collect();
    let pieces: Vec<_> = pollster::block_on(engine.ask(chat()).stream().collect());
    let pieces: Vec<String> = pieces.into_iter().map(Result::unwrap).collect();
    assert_eq!((pieces.concat(), &pieces), (expected, &blocking));
    assert!(pieces.len() > 1 && pieces.iter().all(|piece| !piece.is_empty()), "{pieces:?}");
}

/// Allows no token.
#[derive(Debug)]
struct Nothing;

impl TokenMask for Nothing {
    fn allow(&mut self, _: &mut [u32]) {}

    fn accept(&mut self, _: u32) {}

    fn fork(&self) -> Box<dyn TokenMask> {
        Box::new(Self)
    }
}

#[test]
fn an_answer_that_does_not_end_is_an_error() {
    let engine = open();
    let mut none = chat();
    none.request = none.request.mask(Box::new(Nothing)).id("mine");
    let error = engine.ask(none.clone()).wait().unwrap_err();
    insta::assert_snapshot!(error, @"mine: the constraint on the output leaves no token");
    assert!(matches!(error, Error::Unanswered { reason: FinishReason::NothingAllowed, .. }));
    let pieces: Vec<_> = pollster::block_on(engine.ask(none).stream().collect());
    assert!(matches!(&pieces[..], [Err(Error::Unanswered { .. })]), "{pieces:?}");

    // What is refused at once, and by the engine.
    let long = engine.ask("a ".repeat(2000)).wait().unwrap_err();
    assert!(matches!(long, Error::Admit(_)), "{long}");
    let mut late = chat().max_tokens(200);
    late.request.deadline = Some(std::time::Instant::now());
    insta::assert_snapshot!(engine.ask(late).wait().unwrap_err().to_string().split_once(": ").unwrap().1, @"its deadline has passed");
    engine.shutdown(Shutdown::Drain).wait();
    assert!(matches!(pollster::block_on(engine.ask("a")), Err(Error::Stopped)));
}

#[test]
fn an_answer_that_is_dropped_cancels_its_request() {
    let engine = open();
    let mut pieces = engine.ask(chat().max_tokens(900)).stream().blocking();
    pieces.next().unwrap().unwrap();
    drop(pieces);
    engine.shutdown(Shutdown::Drain).wait();
    assert_eq!(engine.snapshot().totals.aborted, 1);
}

#[test]
fn a_model_is_opened_from_a_path_or_as_it_is() {
    let (folder, model) = model();
    let model = Arc::new(model);
    let shared = pagoda::open(Arc::clone(&model)).context(64).spawn().unwrap();
    assert!(Arc::ptr_eq(shared.model(), &model));
    assert!(shared.options().recover);
    let error = shared.ask("a ".repeat(100)).wait().unwrap_err().to_string();
    assert!(error.contains("64"), "{error}");
    let missing = folder.path().join("missing");
    assert!(matches!(pagoda::open(missing).spawn(), Err(Error::Open { .. })));
}
