//! TLS of a collector, its agents, its readers and the receivers of its alerts: a peer that cannot
//! prove its identity gets nothing.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::{PATIENCE, Server, analysed, batches, hook_over, http, inputs, own, read, recording};
use agent::{Destination, Farewell, Receiver, Uplink};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use serde_json::Value;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ServerConfig, ServerConnection, StreamOwned};
use ureq::tls::{Certificate, RootCerts, TlsConfig};

const TOKENS: &str = "agent = \"agent-agent-agent\"\nviewer = \"viewer-viewer-viewer\"\n";

/// An authority, and files with what it has signed.
pub(super) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: PathBuf,
}

/// Files of a certificate and its key.
pub(super) struct Pair {
    pub(super) certificate: PathBuf,
    pub(super) key: PathBuf,
}

impl Authority {
    pub(super) fn new(folder: &Path, name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("names");
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("a certificate");
        let folder = folder.join(name);
        fs::create_dir(&folder).expect("a folder");
        fs::write(folder.join("ca.pem"), issuer.pem()).expect("a file");
        Self { issuer, folder }
    }

    pub(super) fn file(&self) -> String {
        self.folder
            .join("ca.pem")
            .to_str()
            .expect("UTF-8")
            .to_owned()
    }

    pub(super) fn pair(&self, host: &str) -> Pair {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec![host.to_owned()]).expect("a name");
        let certificate = params.signed_by(&key, &self.issuer).expect("signed");
        let pair = Pair {
            certificate: self.folder.join(format!("{host}.pem")),
            key: self.folder.join(format!("{host}.key")),
        };
        fs::write(&pair.certificate, certificate.pem()).expect("a file");
        fs::write(&pair.key, key.serialize_pem()).expect("a file");
        pair
    }

    /// Trusts it and nobody else.
    fn trusted(&self) -> TlsConfig {
        let pem = self.issuer.pem();
        let certificate = Certificate::from_pem(pem.as_bytes()).expect("PEM");
        TlsConfig::builder()
            .root_certs(RootCerts::from([certificate]))
            .build()
    }
}

impl Pair {
    fn arguments(&self) -> [&str; 4] {
        let text = |path: &'_ Path| path.to_str().expect("UTF-8").to_owned().leak() as &str;
        [
            "--tls-cert",
            text(&self.certificate),
            "--tls-key",
            text(&self.key),
        ]
    }

    /// What a server of the test's own needs.
    fn config(&self) -> Arc<ServerConfig> {
        let chain = CertificateDer::from_pem_file(&self.certificate).expect("PEM");
        let key = PrivateKeyDer::from_pem_file(&self.key).expect("PEM");
        let config = ServerConfig::builder().with_no_client_auth();
        Arc::new(config.with_single_cert(vec![chain], key).expect("a pair"))
    }
}

/// A collector that takes tokens, with this certificate or without TLS.
fn server(folder: &Path, pair: Option<&Pair>) -> Server {
    let tokens = folder.join("tokens.toml");
    fs::write(&tokens, TOKENS).expect("a file");
    let tls = pair.map(Pair::arguments);
    let more = ["--tokens", tokens.to_str().expect("UTF-8")].into_iter();
    let more: Vec<&str> = more.chain(tls.into_iter().flatten()).collect();
    Server::start(&folder.join("data"), &more)
}

/// What `laggard report` says of a collector, with the right token.
fn ask(url: &str, more: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_laggard"));
    command
        .args(["report", "job", "--out", "/dev/null", "--collector", url])
        .args(more);
    command.env("LAGGARD_TOKEN", "viewer-viewer-viewer");
    let output = command.output().expect("it runs");
    (
        output.status.code(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

#[test]
fn who_trusts_the_authority_tells_and_asks_as_without_tls() {
    let folder = tempfile::tempdir().expect("a folder");
    let authority = Authority::new(folder.path(), "right");
    let server = server(folder.path(), Some(&authority.pair("127.0.0.1")));
    assert!(server.url.starts_with("https://"), "{}", server.url);
    // A client that never finishes its handshake keeps nobody waiting.
    let address = server.url.strip_prefix("https://").expect("https");
    let _slow = std::net::TcpStream::connect(address).expect("a connection");
    let receiver = Receiver::Collector {
        url: server.url.clone(),
        tls: authority.trusted(),
        token: Some("agent-agent-agent".to_owned()),
    };
    let uplink = Uplink::start(Destination {
        receiver,
        job: "job".to_owned(),
        host: "h".to_owned(),
    });
    let uplink = uplink.expect("a thread");
    for input in &inputs() {
        uplink.tell(input);
    }
    assert!(uplink.finish(Farewell::Leave, PATIENCE));
    let whole = analysed(&recording());
    let config = ureq::Agent::config_builder()
        .tls_config(authority.trusted())
        .build();
    let client: ureq::Agent = config.into();
    let verdict = || {
        let request = client.get(format!("{}/api/v1/jobs/job/verdict", server.url));
        let request = request.header("authorization", "Bearer viewer-viewer-viewer");
        let (_, text) = read(request.call().expect("an answer"));
        own(serde_json::from_str::<Value>(&text).expect("JSON"))
    };
    let begun = Instant::now();
    while verdict() != whole {
        assert!(begun.elapsed() < PATIENCE, "{}", verdict());
        sleep(Duration::from_millis(50));
    }
    let (code, reported) = ask(&server.url, &["--tls-ca", &authority.file()]);
    assert_eq!(code, Some(0), "{reported}");
}

#[test]
fn who_cannot_prove_who_it_is_is_refused_with_a_reason() {
    let folder = tempfile::tempdir().expect("a folder");
    let right = Authority::new(folder.path(), "right");
    let wrong = Authority::new(folder.path(), "wrong");
    let collector = server(folder.path(), Some(&right.pair("127.0.0.1")));
    // Somebody else's authority, and the system's.
    for more in [&["--tls-ca", &wrong.file()][..], &[]] {
        let (code, reported) = ask(&collector.url, more);
        assert_eq!(code, Some(2), "{reported}");
        assert!(reported.contains("UnknownIssuer"), "{reported}");
        assert!(reported.contains("--tls-ca"), "{reported}");
    }
    // Without TLS, and TLS to who has none.
    let plain = collector.url.replace("https", "http");
    let (code, reported) = ask(&plain, &[]);
    assert_eq!(code, Some(2), "{reported}");
    assert!(
        reported.contains("this address speaks TLS: write https:// for it"),
        "{reported}"
    );
    let url = format!("{plain}/api/v1/jobs/job/hosts/h/epochs/e/batches/0");
    let answer = http()
        .post(url)
        .header("laggard-now-ns", "1")
        .send(&batches(1)[0]);
    assert_eq!(
        read(answer.expect("an answer")).0,
        426,
        "agents keep what they have"
    );
    drop(collector);
    let other = folder.path().join("other");
    fs::create_dir(&other).expect("a folder");
    let without = server(&other, None);
    let secure = without.url.replace("http", "https");
    let (code, reported) = ask(&secure, &["--tls-ca", &right.file()]);
    assert_eq!(code, Some(2), "{reported}");
    assert!(reported.contains("does not answer"), "{reported}");
    drop(without);
    // A certificate of another host.
    let elsewhere = server(&other, Some(&right.pair("elsewhere.example")));
    let (code, reported) = ask(&elsewhere.url, &["--tls-ca", &right.file()]);
    assert_eq!(code, Some(2), "{reported}");
    assert!(reported.contains("not valid for name"), "{reported}");
}

#[test]
fn tokens_are_shown_to_nobody_who_cannot_prove_who_it_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let (right, wrong) = (
        Authority::new(folder.path(), "right"),
        Authority::new(folder.path(), "wrong"),
    );
    for (authority, hears) in [(&right, true), (&wrong, false)] {
        let config = authority.pair("127.0.0.1").config();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("https://{}", listener.local_addr().expect("an address"));
        let heard = std::thread::spawn(move || {
            let (stream, _) = listener.accept().expect("a connection");
            let connection = ServerConnection::new(config).expect("a connection");
            let mut stream = StreamOwned::new(connection, stream);
            let mut heard = vec![0; 4096];
            let length = stream.read(&mut heard).unwrap_or(0);
            // That it may have gone is no matter.
            drop(stream.write_all(b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n"));
            String::from_utf8_lossy(&heard[..length]).into_owned()
        });
        assert_eq!(ask(&url, &["--tls-ca", &right.file()]).0, Some(2));
        let heard = heard.join().expect("it ends");
        assert_eq!(heard.contains("viewer-viewer-viewer"), hears, "{heard:?}");
        assert_eq!(heard.is_empty(), !hears, "{heard:?}");
    }
}

#[test]
fn certificates_that_cannot_be_used_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let authority = Authority::new(folder.path(), "right");
    let (one, other) = (authority.pair("127.0.0.1"), authority.pair("elsewhere"));
    let serve = |certificate: &Path, key: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_laggard"));
        command
            .args(["serve", "--listen", "127.0.0.1:0", "--data"])
            .arg(folder.path());
        command
            .arg("--tls-cert")
            .arg(certificate)
            .arg("--tls-key")
            .arg(key);
        let output = command.output().expect("it runs");
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let reported = serve(&one.certificate, &other.key);
    assert!(
        reported.contains("elsewhere.key cannot be used together"),
        "{reported}"
    );
    let reported = serve(&one.key, &one.key);
    assert!(
        reported.contains("127.0.0.1.key: no certificate can be read from it"),
        "{reported}"
    );
    let key = one.key.to_str().expect("UTF-8");
    for (file, said) in [
        ("/none", "cannot read authorities from /none"),
        (key, "no certificate"),
    ] {
        let (code, reported) = ask("https://127.0.0.1:1", &["--tls-ca", file]);
        assert_eq!(code, Some(2));
        assert!(reported.contains(said), "{reported}");
    }
}

#[test]
fn incidents_are_announced_over_tls_to_whom_is_trusted() {
    let folder = tempfile::tempdir().expect("a folder");
    let authority = Authority::new(folder.path(), "right");
    let config = authority.pair("127.0.0.1").config();
    let (url, messages) = hook_over("https", move |stream| {
        let connection = ServerConnection::new(Arc::clone(&config));
        StreamOwned::new(connection.expect("a connection"), stream)
    });
    let file = authority.file();
    let data = folder.path().join("data");
    let server = Server::start(&data, &["--webhook", &url, "--tls-ca", &file]);
    for (at, batch) in batches(8)[..7].iter().enumerate() {
        server.post(&super::place(at), batch).expect("an answer");
    }
    let message = messages.recv_timeout(PATIENCE).expect("a message");
    assert_eq!(message["event"], "opened");
}
