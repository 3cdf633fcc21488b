//! Server-sent events as they arrive: the data of each, however the bytes are split.

/// Reader of a stream of server-sent events. It keeps the bytes of an event that is not complete.
#[derive(Debug, Default)]
pub(super) struct Events {
    rest: Vec<u8>,
}

impl Events {
    /// Takes the next bytes; returns the data of the events that they complete. Comments and other fields are left out.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Vec<String> {
        self.rest.extend_from_slice(bytes);
        let mut events = Vec::new();
        while let Some((event, rest)) = split(&self.rest) {
            let data: Vec<&str> = event.lines().filter_map(data).collect();
            if !data.is_empty() {
                events.push(data.join("\n"));
            }
            self.rest = rest.to_vec();
        }
        events
    }
}

/// Splits off the first server-sent event, and returns it and the bytes after it; `None` if no event is complete.
fn split(bytes: &[u8]) -> Option<(String, &[u8])> {
    let ends = [&b"\n\n"[..], b"\r\n\r\n"];
    let (at, len) = ends
        .iter()
        .filter_map(|end| Some((bytes.windows(end.len()).position(|window| window == *end)?, end.len())))
        .min()?;
    Some((String::from_utf8_lossy(&bytes[..at]).into_owned(), &bytes[at + len..]))
}

fn data(line: &str) -> Option<&str> {
    let value = line.strip_prefix("data:")?;
    Some(value.strip_prefix(' ').unwrap_or(value))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const STREAM: &str = ": ping\n\ndata: {\"a\": \"é😀\"}\n\nevent: x\r\ndata:b\r\ndata: c\r\n\r\nid: 7\n\ndata: [DONE]\n\ndata: cut";

    proptest! {
        #[test]
        fn events_are_the_same_in_any_pieces(mut cuts in prop::collection::vec(0..STREAM.len(), 0..9)) {
            cuts.extend([0, STREAM.len()]);
            cuts.sort_unstable();
            let mut events = Events::default();
            let pieces = cuts.windows(2).map(|pair| &STREAM.as_bytes()[pair[0]..pair[1]]);
            let data: Vec<String> = pieces.flat_map(|piece| events.take(piece)).collect();
            prop_assert_eq!(data, ["{\"a\": \"é😀\"}", "b\nc", "[DONE]"]);
        }
    }
}
