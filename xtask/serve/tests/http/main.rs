//! The server as clients meet it: HTTP over sockets, with a tiny model on lavapipe or whatever adapter there is.

mod about;
mod agents;
mod anthropic;
mod browser;
mod chat;
mod client;
mod clients;
mod completions;
mod constraint;
mod corpus;
mod embeddings;
mod encoded;
mod fixture;
mod hostile;
mod keys;
mod kv_events;
mod load;
mod loops;
mod metrics;
mod mount;
mod non_finite;
mod openai;
mod openapi;
mod operator;
mod packages;
mod page;
mod recovery;
mod refusals;
mod replicas;
mod responses;
mod restart;
mod scripted;
mod streams;
mod tiny;
mod tokens;
mod tolerance;
mod tools;
mod traces;

/// Whether the long form of every test is asked for.
fn is_long() -> bool {
    std::env::var_os("PAGODA_LONG_TESTS").is_some()
}
