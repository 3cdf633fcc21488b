//! An S3 server of a test, over a folder of its own on a loopback port: real HTTP, real signatures.

use std::net::SocketAddr;

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

/// The bucket that is there.
pub(crate) const BUCKET: &str = "kv-blocks";
const KEY: &str = "the key";
const SECRET: &str = "the secret";

/// The server; it ends when it is dropped, its folder as well.
pub(crate) struct S3 {
    address: SocketAddr,
    pub(crate) folder: TempDir,
    _runtime: Runtime,
}

impl S3 {
    /// Starts a server with an empty bucket.
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join(BUCKET)).unwrap();
        let mut service = S3ServiceBuilder::new(s3s_fs::FileSystem::new(folder.path()).unwrap());
        service.set_auth(SimpleAuth::from_single(KEY, SECRET));
        let service = service.build();
        let runtime = Runtime::new().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let service = service.clone();
                tokio::spawn(async move {
                    let http = Builder::new(TokioExecutor::new());
                    // A client that goes away ends its connection, nothing else.
                    let _ = http.serve_connection(TokioIo::new(socket), service).await;
                });
            }
        });
        Self { address, folder, _runtime: runtime }
    }

    /// The environment by which S3 clients find the server.
    pub(crate) fn environment(&self) -> [(&'static str, String); 4] {
        [
            ("AWS_ENDPOINT_URL", format!("http://{}", self.address)),
            ("AWS_REGION", "us-east-1".into()),
            ("AWS_ACCESS_KEY_ID", KEY.into()),
            ("AWS_SECRET_ACCESS_KEY", SECRET.into()),
        ]
    }
}
