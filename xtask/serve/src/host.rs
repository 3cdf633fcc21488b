//! Refuses what a page of another site makes a browser send: calls by a name that its owner has let resolve to this machine (DNS
//! rebinding), and forged posts.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{HOST, ORIGIN};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, Version};
use axum::middleware::Next;
use axum::response::Response;

use crate::anthropic;
use crate::error::ApiError;
use crate::server::Server;

/// Header in which a browser states whether the page that sends a request is of the same site as the server.
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Refuses calls whose `Host` is not allowed, and calls with effects from pages of other sites.
pub(crate) async fn check(State(server): State<Arc<Server>>, request: Request, next: Next) -> Response {
    let options = &server.options;
    match checked(&request, options.allowed_hosts.as_deref(), &options.allowed_origins) {
        Ok(()) => next.run(request).await,
        Err(error) => anthropic::respond(request.uri().path(), &error),
    }
}

fn checked(request: &Request, allowed: Option<&[String]>, origins: &[String]) -> Result<(), ApiError> {
    let host = host(request)?;
    named(host.as_ref(), allowed)?;
    if request.method().is_safe() { Ok(()) } else { same_origin(host.as_ref(), request.headers(), origins) }
}

/// The host of a request; `None` in HTTP/1.0, which need not name any.
fn host(request: &Request) -> Result<Option<Authority>, ApiError> {
    let mut hosts = request.headers().get_all(HOST).iter();
    match (hosts.next(), hosts.next()) {
        (Some(host), None) => match Authority::try_from(host.as_bytes()) {
            Ok(host) => Ok(Some(host)),
            Err(_) => Err(ApiError::invalid(format!("Host {host:?} is not the name of a host"))),
        },
        (None, _) if request.version() < Version::HTTP_11 => Ok(None),
        // HTTP/2 has the host in the address.
        (None, _) if request.version() >= Version::HTTP_2 => Ok(request.uri().authority().cloned()),
        (None, _) => Err(ApiError::invalid("a request of HTTP/1.1 has a Host header, this one has none")),
        _ => Err(ApiError::invalid("a request has one Host header, this one has several")),
    }
}

/// Refuses names that their owners may let resolve to this machine. IP addresses and names below `localhost` have no owner.
fn named(host: Option<&Authority>, allowed: Option<&[String]>) -> Result<(), ApiError> {
    let (Some(host), Some(allowed)) = (host, allowed) else { return Ok(()) };
    let name = host.host().trim_end_matches('.').to_ascii_lowercase();
    let is_address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_ok();
    let is_local = name == "localhost" || name.ends_with(".localhost");
    if is_address || is_local || allowed.iter().any(|allowed| allowed.eq_ignore_ascii_case(&name)) {
        return Ok(());
    }
    let message = format!("the server takes no calls for host {name:?}: it is not among --allowed-hosts");
    Err(ApiError::new(StatusCode::FORBIDDEN, message).with_code("host_not_allowed"))
}

/// Refuses calls from pages of other origins than the server's and the allowed ones. A browser says in `Sec-Fetch-Site` whether
/// a page is the server's own, whatever a proxy has made of `Host`; older ones send `Origin` alone.
fn same_origin(host: Option<&Authority>, headers: &HeaderMap, allowed: &[String]) -> Result<(), ApiError> {
    let origin = headers.get(ORIGIN);
    let is_allowed = |origin: &HeaderValue| allowed.iter().any(|allowed| allowed == "*" || origin == allowed);
    let is_own = match headers.get(FETCH_SITE) {
        Some(site) => site == "same-origin" || site == "none",
        None => origin.is_none_or(|origin| {
            let origin = Uri::try_from(origin.as_bytes()).ok();
            origin.as_ref().and_then(Uri::authority) == host
        }),
    };
    if is_own || origin.is_some_and(is_allowed) {
        return Ok(());
    }
    let message = "a page of another site has sent this call: its origin is not among --allowed-origins";
    Err(ApiError::new(StatusCode::FORBIDDEN, message).with_code("cross_site"))
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::Method;

    use super::*;

    fn status(method: Method, headers: &[(&str, &str)], allowed: Option<&[String]>) -> Result<(), u16> {
        let request = Request::builder().method(method).uri("/v1/completions");
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        checked(&request.body(Body::empty()).unwrap(), allowed, &["https://chat.example".to_owned()])
            .map_err(|error| error.status.as_u16())
    }

    #[test]
    fn hosts_are_addresses_localhost_or_allowed() {
        let allowed = ["pagoda.example".to_owned()];
        let get = |host, allowed| status(Method::GET, &[("host", host)], allowed);
        let local = ["127.0.0.1:8080", "localhost", "LocalHost:8080", "a.localhost", "[::1]:80", "10.0.0.7"];
        for host in local.into_iter().chain(["pagoda.example:8080", "PAGODA.example."]) {
            assert_eq!(get(host, Some(&allowed)), Ok(()), "{host}");
        }
        for host in ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "notlocalhost"] {
            assert_eq!(get(host, Some(&allowed)), Err(403), "{host}");
            assert_eq!(get(host, None), Ok(()), "{host}");
        }
        assert_eq!(get("a b", None), Err(400));
        assert_eq!(status(Method::GET, &[], None), Err(400));
        assert_eq!(status(Method::GET, &[("host", "a"), ("host", "b")], None), Err(400));
    }

    #[test]
    fn pages_of_other_sites_have_no_effects() {
        let host = ("host", "127.0.0.1:8080");
        let own = ("origin", "http://127.0.0.1:8080");
        // Behind a proxy that changes Host, and of an origin that is allowed.
        let proxied = [("origin", "https://pagoda.example"), ("sec-fetch-site", "same-origin")];
        let allowed = [("origin", "https://chat.example"), ("sec-fetch-site", "cross-site")];
        for others in
            [vec![], vec![own], vec![own, ("sec-fetch-site", "same-origin")], proxied.into(), allowed.into()]
        {
            assert_eq!(status(Method::POST, &[&[host][..], &others].concat(), None), Ok(()), "{others:?}");
        }
        let evil = [("origin", "http://evil.example"), ("origin", "null"), ("origin", "http://127.0.0.1:9")];
        for other in
            evil.into_iter().chain([("sec-fetch-site", "cross-site"), ("sec-fetch-site", "same-site")])
        {
            assert_eq!(status(Method::POST, &[host, other], None), Err(403), "{other:?}");
            assert_eq!(status(Method::GET, &[host, other], None), Ok(()), "{other:?}");
        }
    }
}
