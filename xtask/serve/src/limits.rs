//! Limits on the requests and tokens of an API key in a minute.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, HeaderName, HeaderValue};

/// Time in which an empty budget fills up.
const MINUTE: Duration = Duration::from_mins(1);

/// Budgets of a key. A call is accepted while both are above zero; its use is subtracted even if they fall below, because the
/// length of an answer is known only at its end.
#[derive(Debug)]
pub(crate) struct Limits {
    requests: Option<Budget>,
    tokens: Option<Budget>,
}

/// A budget that refills steadily, up to the amount of a minute.
#[derive(Debug)]
struct Budget {
    per_minute: f64,
    state: Mutex<State>,
}

#[derive(Debug, Clone, Copy)]
struct State {
    /// Rest of the budget; negative if more was used than the budget held.
    left: f64,
    at: Instant,
}

/// A budget that is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exceeded {
    unit: &'static str,
    per_minute: u64,
    /// Time until the budget suffices.
    pub(crate) wait: Duration,
}

impl fmt::Display for Exceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { unit, per_minute, wait } = self;
        let seconds = wait.as_secs_f64();
        write!(f, "the limit of this API key is {per_minute} {unit} a minute; try again in {seconds:.1} s")
    }
}

impl Limits {
    /// Full budgets of this many requests and tokens a minute; `None` for any number.
    pub(crate) fn new(requests: Option<u32>, tokens: Option<u32>, now: Instant) -> Self {
        let budget = |per_minute: u32| Budget::new(per_minute.into(), now);
        Self { requests: requests.map(budget), tokens: tokens.map(budget) }
    }

    /// Takes a request on.
    pub(crate) fn admit(&self, now: Instant) -> Result<(), Exceeded> {
        if let Some(tokens) = &self.tokens {
            tokens.check("tokens", 0.0, now)?;
        }
        match &self.requests {
            Some(requests) => requests.check("requests", 1.0, now),
            None => Ok(()),
        }
    }

    /// Takes tokens from the budget.
    pub(crate) fn use_tokens(&self, tokens: usize, now: Instant) {
        if let Some(budget) = &self.tokens {
            #[expect(clippy::cast_precision_loss, reason = "a prompt has under 2^53 tokens")]
            budget.take(tokens as f64, now);
        }
    }

    /// Adds OpenAI's headers, which state the rest of the budgets.
    pub(crate) fn tell(&self, headers: &mut HeaderMap, now: Instant) {
        const REQUESTS: [&str; 3] =
            ["x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"];
        const TOKENS: [&str; 3] =
            ["x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"];
        for (names, budget) in [(REQUESTS, &self.requests), (TOKENS, &self.tokens)] {
            let Some(budget) = budget else { continue };
            let left = budget.take(0.0, now);
            let reset = (budget.per_minute - left) / budget.per_minute * MINUTE.as_secs_f64();
            let values =
                [budget.per_minute.to_string(), left.max(0.0).floor().to_string(), format!("{reset:.3}s")];
            for (name, value) in names.into_iter().zip(values) {
                let value = HeaderValue::from_str(&value).expect("numbers are ASCII");
                headers.insert(HeaderName::from_static(name), value);
            }
        }
    }
}

impl Budget {
    fn new(per_minute: f64, at: Instant) -> Self {
        Self { per_minute, state: Mutex::new(State { left: per_minute, at }) }
    }

    /// Subtracts an amount, even if less is left; returns the rest.
    fn take(&self, amount: f64, now: Instant) -> f64 {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        *state = self.filled(*state, now);
        state.left -= amount;
        state.left
    }

    /// Subtracts an amount if the budget holds that much. Even an amount of 0 requires a budget above 0.
    fn check(&self, unit: &'static str, amount: f64, now: Instant) -> Result<(), Exceeded> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        *state = self.filled(*state, now);
        let needed = amount.max(f64::MIN_POSITIVE);
        if state.left >= needed {
            state.left -= amount;
            return Ok(());
        }
        let wait = (needed - state.left) / self.per_minute * MINUTE.as_secs_f64();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "made from a u32")]
        let per_minute = self.per_minute as u64;
        Err(Exceeded { unit, per_minute, wait: Duration::from_secs_f64(wait) })
    }

    fn filled(&self, State { left, at }: State, now: Instant) -> State {
        let gained = now.saturating_duration_since(at).as_secs_f64() / MINUTE.as_secs_f64() * self.per_minute;
        State { left: (left + gained).min(self.per_minute), at: at.max(now) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(limits: &Limits, now: Instant) -> Vec<String> {
        let mut headers = HeaderMap::new();
        limits.tell(&mut headers, now);
        headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect()
    }

    #[test]
    fn requests_come_back_with_time() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let limits = Limits::new(Some(3), None, start);
        (0..3).for_each(|_| limits.admit(start).unwrap());
        let full = limits.admit(start).unwrap_err();
        assert_eq!((full.wait, full.unit), (Duration::from_secs(20), "requests"));
        insta::assert_snapshot!(full, @"the limit of this API key is 3 requests a minute; try again in 20.0 s");
        assert!(
            limits.admit(at(19)).is_err() && limits.admit(at(20)).is_ok() && limits.admit(at(20)).is_err()
        );
        insta::assert_debug_snapshot!(told(&limits, at(40)), @r#"
        [
            "x-ratelimit-limit-requests: 3",
            "x-ratelimit-remaining-requests: 1",
            "x-ratelimit-reset-requests: 40.000s",
        ]
        "#);
        // No more than a minute's requests are saved up.
        (0..3).for_each(|_| limits.admit(at(1000)).unwrap());
        assert!(limits.admit(at(1000)).is_err());
    }

    #[test]
    fn tokens_may_be_owed() {
        let start = Instant::now();
        let limits = Limits::new(None, Some(60), start);
        limits.admit(start).unwrap();
        limits.use_tokens(90, start);
        let owed = limits.admit(start).unwrap_err();
        assert!(owed.unit == "tokens" && owed.wait >= Duration::from_secs(30), "{owed:?}");
        assert!(limits.admit(start + Duration::from_millis(30_100)).is_ok());
        assert!(told(&limits, start).contains(&"x-ratelimit-remaining-tokens: 0".to_owned()));
    }

    #[test]
    fn a_key_without_limits_is_told_nothing() {
        let limits = Limits::new(None, None, Instant::now());
        assert!(told(&limits, Instant::now()).is_empty() && limits.admit(Instant::now()).is_ok());
    }
}
