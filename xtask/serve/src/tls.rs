//! HTTPS: a certificate and its key, from files that may change.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::listener::Connection;

/// A certificate with its key.
#[derive(Debug, Clone)]
pub struct Tls(Arc<Files>);

#[derive(Debug)]
struct Files {
    certificates: PathBuf,
    key: PathBuf,
    config: RwLock<Arc<ServerConfig>>,
}

impl Tls {
    /// Reads the certificates, the server's first, and the key, both in PEM.
    ///
    /// # Errors
    /// If a file cannot be read, has no certificate or key, or the two do not belong together; with its path.
    pub fn read(certificates: impl Into<PathBuf>, key: impl Into<PathBuf>) -> io::Result<Self> {
        let (certificates, key) = (certificates.into(), key.into());
        let config = RwLock::new(read(&certificates, &key)?);
        Ok(Self(Arc::new(Files { certificates, key, config })))
    }

    /// Reads the files again, for connections that come from now on.
    pub(crate) fn reload(&self) -> io::Result<()> {
        let config = read(&self.0.certificates, &self.0.key)?;
        *self.0.config.write().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(())
    }

    /// Encrypts a connection.
    pub(crate) async fn accept(&self, connection: Box<dyn Connection>) -> io::Result<Box<dyn Connection>> {
        let config = Arc::clone(&self.0.config.read().unwrap_or_else(PoisonError::into_inner));
        Ok(Box::new(TlsAcceptor::from(config).accept(connection).await?))
    }
}

fn read(certificates: &PathBuf, key: &PathBuf) -> io::Result<Arc<ServerConfig>> {
    let wrong = |path: &PathBuf, error: &dyn std::fmt::Display| {
        io::Error::new(io::ErrorKind::InvalidInput, format!("{}: {error}", path.display()))
    };
    let chain = CertificateDer::pem_file_iter(certificates)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| wrong(certificates, &error))?;
    if chain.is_empty() {
        return Err(wrong(certificates, &"there is no certificate in it"));
    }
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| wrong(key, &error))?;
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?;
    let mut config = builder
        .with_no_client_auth()
        .with_single_cert(chain, secret)
        .map_err(|error| wrong(certificates, &error))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
