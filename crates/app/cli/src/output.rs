//! The two ways out: results and everything else.

use std::borrow::Cow;
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
    drop(writeln!(io::stderr(), "{}", inert(line)));
}

/// Writes a result to standard output.
///
/// A reader that has gone away, as `head` does, has what it wanted.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let text = inert(text);
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// A text with nothing in it that a terminal takes for an order, but for colours: names in a recording, and what a
/// collector answers, are anybody's.
fn inert(text: &str) -> Cow<'_, str> {
    let is_order = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    if !text.contains(is_order) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(is_order) {
        out += &rest[..at];
        let colour = colour_len(&rest[at..]);
        let order = rest[at..].chars().next().map_or(1, char::len_utf8);
        match colour {
            Some(colour) => out += &rest[at..at + colour],
            None => out.push(char::REPLACEMENT_CHARACTER),
        }
        rest = &rest[at + colour.unwrap_or(order)..];
    }
    (out + rest).into()
}

/// The length of the code for a colour that a text begins with.
fn colour_len(text: &str) -> Option<usize> {
    let code = text.strip_prefix("\u{1b}[")?;
    let end = code.find(|c: char| !c.is_ascii_digit() && c != ';')?;
    code[end..].starts_with('m').then_some(2 + end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_give_a_terminal_no_orders() {
        let coloured = "\u{1b}[1;31mCRITICAL\u{1b}[0m  rank 2\n";
        assert_eq!(inert(coloured), coloured);
        let clipboard = "host  vm\u{1b}]52;c;ZXZpbA==\u{7}\u{1b}[2J\u{9b}2J";
        assert_eq!(
            inert(clipboard),
            "host  vm\u{fffd}]52;c;ZXZpbA==\u{fffd}\u{fffd}[2J\u{fffd}2J"
        );
    }
}
