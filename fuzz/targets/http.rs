//! Whatever comes to a collector's address is answered as HTTP, or not at all: it goes on to answer
//! others, and nothing is its own fault (500).
#![no_main]

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::LazyLock;
use std::time::Duration;
use std::{env, fs, thread};

use collector::{Collector, Keep, Options, Pages, Tokens};
use formats::pack_batch;
use protocol::BatchHead;
use report::{html, incident_html, live_html, overview};
use verdict::Settings;

/// A collector, one for all inputs: what one of them leaves behind is there for the next.
static ADDRESS: LazyLock<SocketAddr> = LazyLock::new(|| {
    let data = env::temp_dir().join("laggard-fuzz-http");
    drop(fs::remove_dir_all(&data));
    let options = Options {
        data,
        settings: Settings::default(),
        tokens: Tokens::default(),
        jobs: 8,
        job_bytes: 1 << 20,
        keep: Keep::default(),
        certificate: None,
        webhook: None,
        history: None,
        bus: None,
    };
    let pages = Pages {
        report: |job| html(&job.verdict(), job.series(), job.names()),
        live: |job| live_html(&job.verdict(), job.series(), job.names()),
        incident: incident_html,
        overview,
    };
    let collector = Collector::open(options, pages, |_| ()).expect("a folder");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("it has one");
    thread::spawn(move || collector.serve(listener));
    address
});

/// Lines of a batch as they are sent; anything else as it is.
fn packed(body: &[u8]) -> Vec<u8> {
    let line = body
        .split_inclusive(|byte| *byte == b'\n')
        .next()
        .map_or(0, <[u8]>::len);
    let head: Option<BatchHead> = serde_json::from_slice(&body[..line]).ok();
    let batch = head.and_then(|head| pack_batch(&head, &body[line..]).ok());
    batch.unwrap_or_else(|| body.to_vec())
}

/// What it answers, if that begins before `patience` is over: it waits for the rest of a request.
fn ask(request: &[u8], patience: Duration) -> Vec<u8> {
    let mut stream = TcpStream::connect(*ADDRESS).expect("it answers");
    stream.set_read_timeout(Some(patience)).expect("a socket");
    // It may have heard enough before the end.
    drop(stream.write_all(request));
    let mut answer = vec![0; 1 << 12];
    // The fuzzer's own alarm may interrupt it.
    let read = loop {
        match stream.read(&mut answer) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            read => break read.unwrap_or(0),
        }
    };
    answer.truncate(read);
    answer
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let line = bytes
        .iter()
        .position(|byte| *byte == b'\n')
        .unwrap_or(bytes.len());
    let (line, rest) = bytes.split_at(line);
    let request = if line.ends_with(b"\r") {
        bytes.to_vec()
    } else {
        // The first line and what is sent; `localhost` is who is answered without tokens.
        let body = packed(rest.strip_prefix(b"\n").unwrap_or(rest));
        let head = format!(
            " HTTP/1.1\r\nhost: localhost\r\nlaggard-now-ns: 1000\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        [line, head.as_bytes(), &body].concat()
    };
    let answer = ask(&request, Duration::from_millis(100));
    let said = String::from_utf8_lossy(&answer);
    assert!(said.is_empty() || said.starts_with("HTTP/1."), "{said}");
    assert!(said.get(8..12) != Some(" 500"), "{said}");
    let question = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let healthy = ask(question, Duration::from_secs(5));
    assert!(
        healthy.starts_with(b"HTTP/1.1 200"),
        "{}",
        String::from_utf8_lossy(&healthy)
    );
});
