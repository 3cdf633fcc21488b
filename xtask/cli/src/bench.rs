//! `pagoda bench`: measures a server. The parts that other measurements share are public.

pub mod median;
pub mod page;
pub mod percentiles;
pub mod plan;
pub mod serve;
pub mod workload;
