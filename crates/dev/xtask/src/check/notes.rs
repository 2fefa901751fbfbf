//! Notes that are worded where they arise.

use crate::source::SourceFile;

/// The file that hands on words from outside: those that hooks in Python write into a ring.
const HANDS_ON: &str = "crates/capture/ring/src/job.rs";

/// Notes that a file puts into words, or hands on in words, where it should give values.
pub(super) fn worded(sources: &[SourceFile]) -> Vec<String> {
    let mut faults = Vec::new();
    for source in sources {
        let code = source.product();
        for (at, _) in code.match_indices("Note::") {
            let note = expression(&code[at..]);
            let is_handed_on = note.starts_with("Note::Text") && source.name == HANDS_ON;
            if note.contains('"') || note.starts_with("Note::Text") && !is_handed_on {
                let (name, line) = (&source.name, code[..at].lines().count());
                faults.push(format!(
                    "{name}:{line}: a note is worded outside of core/narrate"
                ));
            }
        }
    }
    faults
}

/// What code begins with, up to the end of its expression.
fn expression(code: &str) -> &str {
    let mut depth = 0;
    let end = code.find(|it| {
        match it {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
        // A variant may stand in the text of an attribute.
        depth < 0 || depth == 0 && matches!(it, ',' | ';' | '"')
    });
    &code[..end.unwrap_or(code.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_in_words_is_found() {
        let file = |name: &str, text: &str| SourceFile {
            name: name.to_owned(),
            text: text.to_owned(),
        };
        let attribute = "#[serde(with = \"SourceNote::words\")]\n";
        let values = "notes.push(RasNote::Told {\n    rank: rank(1),\n}); say(\"rank 1\");\n";
        let worded = "take(Input::Note(SourceNote::LeftOut(\n    format!(\"rank {rank}\"))));\n";
        let text = "let text = \"rank 1\";\ntake(Input::Note(SourceNote::Text(text)));";
        let code = [
            file("a.rs", &[attribute, values, worded].concat()),
            file("b.rs", text),
            file(HANDS_ON, text),
        ];
        let fault = |place| format!("{place}: a note is worded outside of core/narrate");
        assert_eq!(super::worded(&code), ["a.rs:5", "b.rs:2"].map(fault));
    }
}
