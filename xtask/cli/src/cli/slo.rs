//! Limits that an answer must keep to be good.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

/// Limits of the times of an answer, in milliseconds, written `ttft=500ms,itl=50ms,e2e=10s`.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Slo {
    /// Limit of the time to the first token.
    pub ttft: Option<f64>,
    /// Limit of the mean time between two tokens.
    pub itl: Option<f64>,
    /// Limit of the time to the last token.
    pub e2e: Option<f64>,
}

impl FromStr for Slo {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut slo = Self::default();
        for part in text.split(',') {
            let wrong = || {
                format!(
                    "{part:?} is not NAME=TIME, where NAME is ttft, itl or e2e, and TIME is such as 500ms or 2s"
                )
            };
            let (name, time) = part.split_once('=').ok_or_else(wrong)?;
            let limit = match name {
                "ttft" => &mut slo.ttft,
                "itl" => &mut slo.itl,
                "e2e" => &mut slo.e2e,
                _ => return Err(wrong()),
            };
            let (number, unit) = match time.strip_suffix("ms") {
                Some(number) => (number, 1.0),
                None => (time.strip_suffix('s').ok_or_else(wrong)?, 1e3),
            };
            let number: f64 = number.parse().map_err(|_| wrong())?;
            if !(number > 0.0 && number.is_finite()) || limit.replace(number * unit).is_some() {
                return Err(wrong());
            }
        }
        Ok(slo)
    }
}

impl fmt::Display for Slo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limits = [("ttft", self.ttft), ("itl", self.itl), ("e2e", self.e2e)];
        let given = limits.iter().filter_map(|(name, limit)| Some(format!("{name}={}ms", (*limit)?)));
        f.write_str(&given.collect::<Vec<_>>().join(","))
    }
}

impl Serialize for Slo {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_and_written() {
        let slo: Slo = "ttft=0.5s,itl=50ms".parse().unwrap();
        assert_eq!(slo, Slo { ttft: Some(500.0), itl: Some(50.0), e2e: None });
        assert_eq!(slo.to_string(), "ttft=500ms,itl=50ms");
        for wrong in
            ["", "ttft", "ttft=5", "ttft=xs", "tpot=5ms", "itl=0ms", "itl=-1s", "itl=infs", "itl=1s,itl=2s"]
        {
            assert!(wrong.parse::<Slo>().unwrap_err().contains("such as 500ms"), "{wrong}");
        }
    }
}
