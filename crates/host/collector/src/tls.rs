//! TLS for what reaches the collector.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::server::TlsStream;

/// How long a caller may take to agree on a connection.
const AGREED_WITHIN: Duration = Duration::from_secs(10);
/// Connections that are being agreed on, and that wait to be answered.
const AT_ONCE: usize = 256;
/// The first byte of a connection with TLS: its first record is of a handshake.
const HANDSHAKE: u8 = 22;
/// What is read of a caller who speaks without TLS, so that it hears our answer.
const HEARD_OUT_BYTES: u64 = 1 << 16;
/// The wait after a connection could not be taken, as when too many files are open.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// The answer to who speaks without TLS. Agents keep what is not taken.
const WITHOUT_TLS: &str = "HTTP/1.1 426 Upgrade Required\r\nconnection: close\r\n\
    content-type: application/json\r\ncontent-length: 59\r\n\r\n\
    {\"error\":\"this address speaks TLS: write https:// for it\"}\n";

/// A certificate and its key.
#[derive(Clone)]
pub struct Certificate(Arc<ServerConfig>);

impl std::fmt::Debug for Certificate {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Certificate")
            .finish_non_exhaustive()
    }
}

/// A certificate that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CertificateError {
    /// The file cannot be read, or has no PEM of the kind that is asked for.
    #[error("{}: no {what} can be read from it: {source}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What should be in it.
        what: &'static str,
        /// Why it cannot be had.
        source: pem::Error,
    },
    /// Certificate and key are not of each other, or of a kind that is not known.
    #[error("{} and {} cannot be used together: {source}", certificate.display(), key.display())]
    Pair {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's.
        key: PathBuf,
        /// Why.
        source: tokio_rustls::rustls::Error,
    },
}

impl Certificate {
    /// Reads a certificate, with those between it and its authority, and its key (PEM).
    ///
    /// # Errors
    /// Every variant of [`CertificateError`].
    pub fn read(certificate: &Path, key: &Path) -> Result<Self, CertificateError> {
        let chain = CertificateDer::pem_file_iter(certificate)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .and_then(|chain| match chain.as_slice() {
                [] => Err(pem::Error::NoItemsFound),
                _ => Ok(chain),
            })
            .map_err(|source| CertificateError::Content {
                path: certificate.to_owned(),
                what: "certificate",
                source,
            })?;
        let secret =
            PrivateKeyDer::from_pem_file(key).map_err(|source| CertificateError::Content {
                path: key.to_owned(),
                what: "private key",
                source,
            })?;
        let mut config = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(chain, secret)
            .map_err(|source| CertificateError::Pair {
                certificate: certificate.to_owned(),
                key: key.to_owned(),
                source,
            })?;
        // The only one that is served: a caller that may choose would begin with HTTP/2.
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self(Arc::new(config)))
    }
}

/// Connections with TLS. Nobody who is slow to agree keeps others from being answered.
pub(crate) struct TlsListener {
    agreed: Receiver<(TlsStream<TcpStream>, SocketAddr)>,
    address: SocketAddr,
}

impl TlsListener {
    pub(crate) fn new(listener: TcpListener, certificate: Certificate) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let (sender, agreed) = channel(AT_ONCE);
        tokio::spawn(accept(listener, TlsAcceptor::from(certificate.0), sender));
        Ok(Self { agreed, address })
    }
}

async fn accept(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    agreed: Sender<(TlsStream<TcpStream>, SocketAddr)>,
) {
    // A place is taken for a connection before it is, and given up once it is handed on.
    while let Ok(place) = agreed.clone().reserve_owned().await {
        let Ok((mut stream, address)) = listener.accept().await else {
            sleep(RETRY_AFTER).await;
            continue;
        };
        let acceptor = acceptor.clone();
        tokio::spawn(timeout(AGREED_WITHIN, async move {
            let mut first = [0];
            match stream.peek(&mut first).await {
                Ok(1) if first != [HANDSHAKE] => refuse(&mut stream).await,
                // A client that does not agree knows why; we need not.
                Ok(1) => {
                    if let Ok(stream) = acceptor.accept(stream).await {
                        place.send((stream, address));
                    }
                }
                _ => {}
            }
        }));
    }
}

/// Tells who speaks without TLS what to do.
async fn refuse(stream: &mut TcpStream) {
    // Nothing is lost if it does not listen.
    drop(stream.write_all(WITHOUT_TLS.as_bytes()).await);
    drop(stream.shutdown().await);
    // Closed with bytes unread, the kernel resets the connection, and our answer with it.
    let mut rest = stream.take(HEARD_OUT_BYTES);
    drop(tokio::io::copy(&mut rest, &mut tokio::io::sink()).await);
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        match self.agreed.recv().await {
            Some(agreed) => agreed,
            // The task that accepts ends with us only.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        Ok(self.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_speaks_without_tls_gets_an_answer_that_says_so() {
        let (head, body) = WITHOUT_TLS.split_once("\r\n\r\n").unwrap();
        assert!(head.ends_with(&format!("content-length: {}", body.len())));
    }

    #[test]
    fn files_that_are_no_certificate_or_no_key_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let (certificate, key) = (folder.path().join("c.pem"), folder.path().join("k.pem"));
        let read = || {
            Certificate::read(&certificate, &key)
                .unwrap_err()
                .to_string()
        };
        assert!(
            read().contains("c.pem: no certificate can be read"),
            "{}",
            read()
        );
        std::fs::write(&certificate, "no PEM").unwrap();
        assert!(
            read().contains("c.pem: no certificate can be read"),
            "{}",
            read()
        );
        let text = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        std::fs::write(&certificate, text).unwrap();
        assert!(
            read().contains("k.pem: no private key can be read"),
            "{}",
            read()
        );
    }
}
