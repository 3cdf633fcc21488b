//! The server as clients meet it: HTTP over sockets, with a tiny model on lavapipe or whatever adapter there is.

mod about;
mod anthropic;
mod browser;
mod chat;
mod client;
mod clients;
mod completions;
mod constraint;
mod fixture;
mod hostile;
mod keys;
mod load;
mod metrics;
mod mount;
mod non_finite;
mod openai;
mod openapi;
mod pace;
mod page;
mod recovery;
mod refusals;
mod responses;
mod restart;
mod streams;
mod tokens;
mod tools;
