//! Any message on a bus is no batch of anybody, or one whose job and host have names that are
//! written as its subject has them; any command is none, or one that says the same when told again.
#![no_main]

use bus::BusBatch;
use protocol::Command;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mut lines = bytes.splitn(5, |byte| *byte == b'\n');
    let mut text = || String::from_utf8_lossy(lines.next().unwrap_or_default()).into_owned();
    let (subject, headers) = (text(), [text(), text(), text()]);
    let header = |name: &str| {
        let names = ["Laggard-Epoch", "Laggard-Sequence", "Laggard-Now-Ns"];
        let at = names.iter().position(|known| *known == name)?;
        Some(headers[at].clone())
    };
    if let Some((job, batch)) = BusBatch::of(&subject, header, bytes.to_vec().into()) {
        assert!(!job.is_empty() && !batch.host.is_empty());
        assert_eq!(batch.session, headers[0]);
        assert_eq!(batch.body.len(), bytes.len());
    }
    if let Some(command) = Command::read(bytes) {
        let again = command.to_json();
        assert_eq!(Command::read(again.as_bytes()), Some(command));
    }
});
