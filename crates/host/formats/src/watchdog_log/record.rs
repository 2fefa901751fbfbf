//! Records of a log: what a process printed at once, from lines that were folded at the width of a
//! terminal, joined, or printed behind a progress bar.

use super::said::{counts, digits};

/// Lines that are put together to one record: the watchdog's longest has some 900 characters.
const MAX_FOLDED: u32 = 16;
/// What the watchdog says, by how it begins without white space.
const BEGINNINGS: [&str; 8] = [
    "Watchdogcaught",
    "Timeoutat",
    "Exception(either",
    "failuredetected",
    "Receiveda",
    "Processgroupwatchdog",
    "NCCLwatchdogthread",
    "ProcessGroupNCCL'swatchdog",
];

/// Puts lines together to records.
#[derive(Debug, Default)]
pub(super) struct Records {
    pending: String,
    /// Lines that the pending record is made of.
    lines: u32,
}

impl Records {
    /// Takes the next line; gives the records that end with it.
    pub(super) fn line(&mut self, line: &str, each: &mut dyn FnMut(&str)) {
        let plain = line.contains('\u{1b}').then(|| without_colours(line));
        let line = plain.as_deref().unwrap_or(line).trim_end();
        let mut headers = headers(line).peekable();
        let first = headers.peek().copied().unwrap_or(line.len());
        // A launcher's prefix, a progress bar, or the rest of a folded line.
        self.rest(&line[..first], each);
        while let Some(at) = headers.next() {
            self.end(each);
            line[at..headers.peek().copied().unwrap_or(line.len())].clone_into(&mut self.pending);
            self.lines = 1;
        }
    }

    /// Gives the last record.
    pub(super) fn end(&mut self, each: &mut dyn FnMut(&str)) {
        if !self.pending.is_empty() {
            each(&std::mem::take(&mut self.pending));
        }
    }

    fn rest(&mut self, text: &str, each: &mut dyn FnMut(&str)) {
        if text.trim().is_empty() {
            return;
        }
        if self.lines < MAX_FOLDED && goes_on(&self.pending, text) {
            self.pending.push_str(text);
            self.lines += 1;
            return;
        }
        self.end(each);
        text.clone_into(&mut self.pending);
        self.lines = 1;
    }
}

/// Where records begin in a line: `[rank3]:`, or `[E ProcessGroupNCCL` before PyTorch 2.2.
fn headers(line: &str) -> impl Iterator<Item = usize> {
    line.match_indices('[').map(|(at, _)| at).filter(move |at| {
        match line[at + 1..].strip_prefix("rank") {
            Some(rest) => {
                let (number, rest) = rest.split_at(digits(rest));
                !number.is_empty() && rest.starts_with("]:")
            }
            // After `[rank3]:` it belongs to that header, and is no record of its own.
            None => line[at + 1..].starts_with("E ProcessGroupNCCL") && !line[..*at].ends_with(':'),
        }
    })
}

/// Whether a line continues the record before it.
fn goes_on(record: &str, text: &str) -> bool {
    // Most lines of a log are none of the watchdog's.
    // `[rank2]` and `[Rank 2]` share these letters.
    if !record.contains("ank") {
        return false;
    }
    let said = squeezed(record);
    if !is_whole(&said) {
        return is_begun(&said);
    }
    // The last number may have been folded; digits before a colon are a launcher's.
    let (number, rest) = text.split_at(digits(text));
    said.ends_with(|c: char| c.is_ascii_digit())
        && !number.is_empty()
        && (rest.trim().is_empty() || rest.starts_with(['.', ',']))
}

/// Whether it is the beginning of something that the watchdog says.
fn is_begun(said: &str) -> bool {
    let said = said.strip_prefix("what():").unwrap_or(said);
    let said = match said.split_once("ProcessGroupNCCL.cpp:") {
        Some((_, said)) => match said.split_once(']') {
            Some((_, said)) => said,
            None => return false,
        },
        // Without a header only what cannot be anything else.
        None if said.starts_with("[PG") || said.starts_with("[Rank") => said,
        // A fold in the header itself leaves it without an end.
        None => {
            let header = said.split_once("]:[").map(|(_, header)| header);
            return said.starts_with("[rank") && header.is_some_and(|it| !it.contains(']'));
        }
    };
    let message = match said.strip_prefix('[') {
        Some(prefix) => match prefix.split_once(']') {
            Some((_, message)) => message,
            None => return true,
        },
        None => said,
    };
    BEGINNINGS
        .iter()
        .any(|it| it.starts_with(message) || message.starts_with(it))
}

/// Whether everything is there that is read of it.
fn is_whole(said: &str) -> bool {
    if let Some((_, work)) = said.split_once("WorkNCCL(") {
        return work
            // `Timeout(ms)=` is the last field of an operation.
            .split_once("(ms)=")
            .is_some_and(|(_, rest)| rest.contains(')'));
    }
    if let Some((_, why)) = said.split_once("terminatedwithexception:") {
        return !why.is_empty() && !why.starts_with('[');
    }
    said.contains("gotstuckfor") || counts(said).is_some()
}

/// Whether a text has one of some parts.
pub(super) fn has_any(text: &str, parts: &[&str]) -> bool {
    parts.iter().any(|it| text.contains(it))
}

/// A text without white space: a fold may be anywhere.
pub(super) fn squeezed(text: &str) -> String {
    text.split_whitespace().collect()
}

/// A line without the codes of a terminal for colours.
fn without_colours(line: &str) -> String {
    let mut parts = line.split('\u{1b}');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = |it: &str| it.find(|c: char| c.is_ascii_alphabetic());
        plain += match part.strip_prefix('[') {
            Some(code) => end(code).map_or("", |end| &code[end + 1..]),
            None => part,
        };
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(lines: &str) -> Vec<String> {
        let (mut records, mut all) = (Records::default(), Vec::new());
        for line in lines.split('\n') {
            records.line(line, &mut |record| all.push(record.to_owned()));
        }
        records.end(&mut |record| all.push(record.to_owned()));
        all
    }

    #[test]
    fn what_a_terminal_folded_is_one_record() {
        let folded = "[rank4]:[E1 0:0:0 ProcessGroupNCCL.cpp:629] [Rank 4] Watchdog caught collec\n\
                      tive operation timeout: WorkNCCL(SeqNum=14, OpType=BROADCAST, NumelIn=1\n\
                      12, NumelOut=112, Timeout(ms)=600000) ran for 600010 milliseconds before ti\n\
                      ming out.";
        let [record, rest] = &records(folded)[..] else {
            panic!("{:?}", records(folded));
        };
        assert!(squeezed(record).contains("NumelIn=112,NumelOut=112,Timeout(ms)=600000)"));
        assert_eq!(rest, "ming out.");
        let folded = "[rank4]:[E1 0:0:0 ProcessGroupNCCL.cpp:2168] [PG ID 1 PG GUID 1 Rank 4]  failure det\n\
                      ected by watchdog at work sequence id: 14 PG status: last enqueue\n\
                      d work: 15, last completed work: 1\n\
                      3   \n\
                      Loading";
        let record = &records(folded)[0];
        assert!(squeezed(record).ends_with("lastenqueuedwork:15,lastcompletedwork:13"));
        let folded = "[rank4]:[E1 0:0:0 Proc\nessGroupNCCL.cpp:629] [Rank 4] Watchdog caught";
        assert_eq!(records(folded).len(), 1);
    }

    #[test]
    fn records_of_one_line_are_separated() {
        let line = "  5%|#   | 7/99 [01:08<9:00][rank2]:[E1 ProcessGroupNCCL.cpp:632] [Rank 2] one.   \
                    [rank12]: two";
        let found = records(line);
        assert_eq!(found.len(), 3);
        assert!(found[1].starts_with("[rank2]:[E1"));
        assert_eq!(found[2], "[rank12]: two");
        // The header of an older version, not twice that of a later one.
        assert_eq!(records("x[E ProcessGroupNCCL.cpp:4] [Rank 2] one").len(), 2);
        assert_eq!(records("[rank2]:[E ProcessGroupNCCL.cpp:4] one").len(), 1);
    }

    #[test]
    fn what_follows_a_whole_record_is_another() {
        let whole = "[rank1]: [PG 0 Rank 1] failure detected by watchdog at work sequence id: 7 PG \
                     status: last enqueued work: 7, last completed work: 6";
        for next in [
            "3: [rank2]: hello",
            "2025-01-01 hello",
            "12/99 [00:07",
            "what():  [PG 4 Rank 0] Process group watchdog thread terminated",
        ] {
            assert_eq!(records(&format!("{whole}\n{next}"))[0], whole, "{next}");
        }
        // Nor is a message that says nothing of collectives the begin of what another process says.
        let other = "[rank1]:[E1 0:0:0 ProcessGroupNCCL.cpp:695] [Rank 1] To avoid data inconsistency, \
                     we are taking the entire process down.\nwhat():  [PG 4 Rank 0] Process";
        assert_eq!(records(other).len(), 2);
    }

    #[test]
    fn colours_are_left_out() {
        let line = "\u{1b}[36m(Worker pid=4)\u{1b}[0m [rank1]: \u{1b}[1;31mhello\u{1b}[0m";
        assert_eq!(records(line)[1], "[rank1]: hello");
    }
}
