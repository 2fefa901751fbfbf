//! The two ways out: results and everything else.

use std::io::{self, Write};

use crate::logging;

/// Writes a line to standard error. Nobody reading it must not stop us.
pub(crate) fn say(line: &str) {
    if logging::is_json() {
        // Who reads programs' lines knows whose they are.
        let said = line.strip_prefix("laggard: ").unwrap_or(line);
        tracing::info!(target: logging::SAID, "{said}");
        return;
    }
    drop(writeln!(io::stderr(), "{line}"));
}

/// Writes a result to standard output.
///
/// A reader that has gone away, as `head` does, has what it wanted.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}
