//! Draws as requests ask for them: log-probabilities, masks, biases, penalties and ends.

use pagoda::{
    Demand, Engine, Error, Event, FinishReason, LogProbs, LogitBias, Penalties, Request, Sampling, Sequence,
    TokenBias, TokenMask, error_chain,
};

use crate::{engine, model, options, prompt, request, run};

/// Log-probabilities of `ids` but the first, each given those before it.
fn scored(ids: &[u32]) -> Vec<f32> {
    let options = options().demand(Demand::one(512));
    let mut decoder = model().load(&options, 32).unwrap();
    Sequence::new(&mut decoder, 32).unwrap().log_probs(ids).unwrap()
}

#[track_caller]
fn assert_scores(got: &[LogProbs], ids: &[u32], want: &[f32], top: usize) {
    assert_eq!(got.iter().map(|entry| entry.token.token).collect::<Vec<_>>(), ids);
    for (got, want) in got.iter().zip(want) {
        assert!((got.token.log_prob - want).abs() < 1e-3, "{got:?}, not {want}");
        assert_eq!(got.top.len(), top);
        assert!(got.top.is_sorted_by(|a, b| a.log_prob >= b.log_prob));
        assert!(top == 0 || got.top[0].log_prob >= got.token.log_prob);
    }
}

/// The events of one request.
fn events(engine: &mut Engine, request: &Request) -> Vec<Event> {
    engine.submit(request.clone()).unwrap();
    let mut events = Vec::new();
    while engine.has_work() {
        events.extend(engine.step().unwrap());
    }
    events
}

fn prompt_log_probs(events: &[Event]) -> Vec<LogProbs> {
    let mut all = Vec::new();
    for event in events {
        if let Event::Prompt(prompt) = event {
            assert_eq!(prompt.first as usize, all.len() + 1, "scores come in order, each once");
            all.extend(prompt.log_probs.clone());
        }
    }
    all
}

#[test]
fn drawn_and_prompt_tokens_have_log_probabilities() {
    let sampling = Sampling::default().temperature(1.0).seed(1).log_probs(3);
    let mut asks = request(6, 75, 12).sampling(sampling);
    asks.prompt_log_probs = Some(2);
    let mut engine = engine(&options());
    // The second time, the prompt is in the prefix cache.
    for _ in 0..2 {
        let events = events(&mut engine, &asks);
        let drawn: Vec<LogProbs> = events
            .iter()
            .filter_map(|event| match event {
                Event::Token(token) => Some(token.log_probs.clone().unwrap()),
                _ => None,
            })
            .collect();
        let Some(Event::Finished(end)) = events.last() else { panic!("{events:?}") };
        let all = [&asks.prompt[..], &end.output].concat();
        let want = scored(&all);
        assert_scores(&prompt_log_probs(&events), &asks.prompt[1..], &want[..74], 2);
        assert_scores(&drawn, &end.output, &want[74..], 3);
        assert_eq!(end.usage.cached.total(), 0, "the whole prompt is computed");
    }
}

#[test]
fn prompts_are_scored_once_whatever_is_preempted() {
    // Twelve blocks of 16 for three sequences that grow to 96 tokens.
    let mut tight = options();
    tight.kv_blocks = Some(13);
    let mut engine = engine(&tight);
    let requests: Vec<Request> = (0..3)
        .map(|seed| {
            let mut asks = request(seed, 40, 56);
            asks.prompt_log_probs = Some(0);
            asks
        })
        .collect();
    let seqs: Vec<_> = requests.iter().map(|request| engine.submit(request.clone()).unwrap()).collect();
    let mut all = Vec::new();
    while engine.has_work() {
        all.extend(engine.step().unwrap());
    }
    assert!(engine.scheduler().num_preemptions() > 0);
    for (seq, request) in seqs.iter().zip(&requests) {
        let own: Vec<Event> = all.iter().filter(|event| event.request() == *seq).cloned().collect();
        assert_scores(&prompt_log_probs(&own), &request.prompt[1..], &scored(&request.prompt), 0);
    }
}

/// Allows multiples of a number, until it has taken some tokens.
#[derive(Debug, Clone)]
struct Multiples {
    of: u32,
    left: u32,
    completes: bool,
}

impl TokenMask for Multiples {
    fn allow(&mut self, allowed: &mut [u32]) {
        let tokens = (0..128).step_by(self.of as usize).take(if self.left > 0 { 128 } else { 0 });
        tokens.for_each(|token| allowed[token as usize / 32] |= 1 << (token % 32));
    }

    fn accept(&mut self, token: u32) {
        assert_eq!(token % self.of, 0);
        self.left -= 1;
    }

    fn is_complete(&self) -> bool {
        self.completes && self.left == 0
    }

    fn fork(&self) -> Box<dyn TokenMask> {
        Box::new(self.clone())
    }
}

#[test]
fn a_mask_restricts_each_sample_and_ends_it() {
    let sampling = Sampling::default().temperature(1.5).seed(2);
    let masked = |left, completes| {
        let mask = Multiples { of: 5, left, completes };
        request(3, 30, 12).samples(3).sampling(sampling.clone()).mask(Box::new(mask))
    };
    let requests = [masked(100, false), masked(7, true), masked(7, false), request(9, 30, 12)];
    let ends = run(&mut engine(&options()), &requests);
    for (end, request) in ends.iter().zip([0, 0, 0, 1, 1, 1, 2, 2, 2, 3]) {
        let (reason, tokens) = match request {
            1 => (FinishReason::Complete, 7),
            2 => (FinishReason::NothingAllowed, 7),
            _ => (FinishReason::Length, 12),
        };
        assert_eq!((&end.reason, end.output.len()), (&reason, tokens), "{end:?}");
        assert!(request == 3 || end.output.iter().all(|id| id % 5 == 0), "{end:?}");
    }
    assert_ne!(ends[0].output, ends[1].output, "samples draw with seeds of their own");
    // Whoever is beside it, a request without a mask draws what it draws alone.
    assert_eq!(ends[9].output, run(&mut engine(&options()), &requests[3..])[0].output);
}

#[test]
fn biases_and_penalties_reach_the_draw() {
    let bias = |token, bias| LogitBias::new([TokenBias { token, bias }]);
    let biased = Sampling::default().logit_bias(bias(77, 100.0));
    let penalties = Penalties::OFF.frequency(60.0);
    let penalised = Sampling::default().logit_bias(bias(77, 100.0)).penalties(penalties);
    let requests = [biased, penalised].map(|sampling| request(3, 30, 6).sampling(sampling));
    let ends = run(&mut engine(&options()), &requests);
    assert_eq!(ends[0].output, [77; 6]);
    let times = ends[1].output.iter().filter(|id| **id == 77).count();
    assert!((1..=2).contains(&times), "100 less 60 a time: {:?}", ends[1].output);
}

#[test]
fn stop_tokens_end_the_output_after_its_least_length() {
    let greedy = run(&mut engine(&options()), &[request(3, 30, 40)]).remove(0).output;
    let stop = greedy[4];
    let first = greedy.iter().position(|id| *id == stop).unwrap();
    let stops = |min_tokens| Sampling::default().stop_ids(vec![stop]).min_tokens(min_tokens);
    let requests = [0, 20].map(|least| request(3, 30, 40).sampling(stops(least)));
    let ends = run(&mut engine(&options()), &requests);
    assert_eq!((&ends[0].output[..], &ends[0].reason), (&greedy[..=first], &FinishReason::StopToken(stop)));
    let held = ends[1].output.iter().position(|id| *id == stop);
    assert!(held.is_none_or(|at| at >= 20), "{:?}", ends[1].output);
}

#[test]
fn parameters_out_of_range_are_refused() {
    let mut engine = engine(&options());
    let mut refused = |request: Request| error_chain::joined(&engine.submit(request).unwrap_err());
    let with = |sampling| Request::new(prompt(1, 4)).sampling(sampling);
    let mut scores = with(Sampling::default());
    scores.prompt_log_probs = Some(21);
    let stop = Request::new(prompt(1, 4)).stop("END");
    let said = [
        refused(with(Sampling::default().temperature(-1.0))),
        refused(with(Sampling::default().log_probs(99))),
        refused(with(Sampling::default().stop_ids(vec![128]))),
        refused(scores),
        refused(stop),
        refused(with(Sampling::default().min_tokens(300))),
    ];
    insta::assert_snapshot!(said.join("\n"), @"
    temperature is -1, it must be from 0 on
    log-probabilities of 99 tokens at each position, at most 20 are returned
    stop_ids: token 128 is outside the vocabulary of 128
    log-probabilities of 21 tokens at each position, at most 20 are returned
    stop texts need text, but the request is for token ids alone or the model has no tokenizer
    at least 300 tokens asked for, at most 256
    ");
    assert!(matches!(engine.submit(Request::new(vec![128])), Err(Error::Token { .. })));
}
