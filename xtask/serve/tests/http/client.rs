//! A client that speaks HTTP over a socket, so that it can be as odd as a test needs.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

use crate::fixture::Served;

/// A reply.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("not JSON: {}", self.text()))
    }

    /// The JSON of a call that must have succeeded.
    #[track_caller]
    pub(crate) fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text());
        self.json()
    }

    /// The error of a call that must have failed.
    #[track_caller]
    pub(crate) fn refused(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text());
        self.json()["error"].clone()
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// The data of all events of a stream that must have begun well.
    #[track_caller]
    pub(crate) fn events(&self) -> Vec<String> {
        assert_eq!(
            (self.status, self.header("content-type")),
            (200, Some("text/event-stream")),
            "{}",
            self.text()
        );
        let data =
            |event: &str| event.lines().filter_map(|line| line.strip_prefix("data: ")).collect::<String>();
        self.text().split_terminator("\n\n").filter(|event| !event.starts_with(':')).map(data).collect()
    }
}

/// Opens a connection and sends bytes.
pub(crate) fn send(served: &Served, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(served.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    // A server that refuses early may close before everything is sent.
    let _ = stream.write_all(bytes);
    stream
}

/// The bytes of a POST.
pub(crate) fn post_bytes(path: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\
         connection: close\r\n\r\n"
    );
    [head.as_bytes(), body].concat()
}

/// Reads the only reply of a connection.
pub(crate) fn receive(stream: TcpStream) -> Reply {
    let mut reader = BufReader::new(stream);
    let mut line = || {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    };
    let status = line().split(' ').nth(1).expect("a status line").parse().unwrap();
    let heads = std::iter::from_fn(|| Some(line()).filter(|line| !line.is_empty()));
    let header = |line: String| {
        let (name, value) = line.split_once(':').unwrap();
        (name.to_lowercase(), value.trim().to_owned())
    };
    let headers: Vec<_> = heads.map(header).collect();
    let mut body = Vec::new();
    if headers.iter().any(|(name, value)| name == "transfer-encoding" && value == "chunked") {
        while let Some(chunk) = chunk(&mut reader) {
            body.extend(chunk);
        }
    } else {
        reader.read_to_end(&mut body).unwrap();
    }
    Reply { status, headers, body }
}

/// The next chunk of a chunked body; `None` after the last one.
pub(crate) fn chunk(reader: &mut impl BufRead) -> Option<Vec<u8>> {
    let mut size = String::new();
    reader.read_line(&mut size).unwrap();
    let size = usize::from_str_radix(size.trim(), 16).ok().filter(|size| *size > 0)?;
    let mut chunk = vec![0; size + 2];
    reader.read_exact(&mut chunk).unwrap();
    chunk.truncate(size);
    Some(chunk)
}

/// Posts a body; where the API asks for a model and the body says nothing, it is the server's.
pub(crate) fn post(served: &Served, path: &str, body: &Value) -> Reply {
    let mut body = body.clone();
    if let (Some(fields), "/v1/chat/completions" | "/v1/responses") = (body.as_object_mut(), path) {
        fields.entry("model").or_insert_with(|| "default".into());
    }
    receive(send(served, &post_bytes(path, body.to_string().as_bytes())))
}

pub(crate) fn get(served: &Served, path: &str) -> Reply {
    let head = format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n");
    receive(send(served, head.as_bytes()))
}
