//! Words that documentation and help do without.

use super::prose::prose;
use crate::source::SourceFile;

/// The banned words, each with what to write instead.
const WORDS: &str = include_str!("words.txt");
/// Values of `job.cut` in the verdict document, which stay as they are.
const VALUES: [&str; 2] = [", seen", ", no meeting seen"];

/// Words of pages that have a better one.
pub(super) fn in_pages(pages: &[SourceFile]) -> Vec<String> {
    let mut faults = Vec::new();
    for page in pages {
        for (line, text) in prose(&page.text) {
            faults.extend(banned(&text).map(|fault| format!("{}:{line}: {fault}", page.name)));
        }
    }
    faults
}

/// Words of the help of commands that have a better one. Help is what documents the types that
/// arguments are parsed into.
pub(super) fn in_help(sources: &[SourceFile]) -> Vec<String> {
    let mut faults = Vec::new();
    for source in sources {
        for (line, text) in help(source.product()) {
            faults.extend(banned(text).map(|fault| format!("{}:{line}: {fault}", source.name)));
        }
    }
    faults
}

/// Words of messages, the string literals of files, that have a better one.
pub(super) fn in_messages(sources: &[SourceFile]) -> Vec<String> {
    let mut faults = Vec::new();
    for source in sources {
        for (line, literal) in literals(source.product()) {
            if !VALUES.contains(&literal.as_str()) {
                faults.extend(
                    banned(&literal).map(|fault| format!("{}:{line}: {fault}", source.name)),
                );
            }
        }
    }
    faults
}

/// The words of string literals with the lines they begin in, without values in braces.
fn literals(code: &str) -> Vec<(usize, String)> {
    let lines = code.lines();
    let lines = lines.map(|it| {
        if it.trim_start().starts_with("//") {
            ""
        } else {
            it
        }
    });
    // An escaped quote would end a literal too early. With these replaced, every second part
    // between quotes is a literal.
    let code = lines.collect::<Vec<_>>().join("\n").replace("\\\"", "'");
    let mut line = 1;
    let mut found = Vec::new();
    for (nth, part) in code.split('"').enumerate() {
        if nth % 2 == 1 {
            let unbraced = part
                .split('{')
                .map(|it| it.split_once('}').map_or(it, |it| it.1));
            found.push((line, unbraced.collect::<String>().replace("\\\n", " ")));
        }
        line += part.matches('\n').count();
    }
    found
}

/// Lines of documentation on types that clap derives from, with their numbers.
fn help(source: &str) -> Vec<(usize, &str)> {
    const DERIVES: [&str; 4] = ["Args", "Parser", "Subcommand", "ValueEnum"];
    let mut found = Vec::new();
    let mut pending = Vec::new();
    let mut inside = false;
    for (line, number) in source.lines().zip(1..) {
        if let Some(text) = line.trim_start().strip_prefix("///") {
            let to = if inside { &mut found } else { &mut pending };
            to.push((number, text));
        } else if line.starts_with("#[derive(") && DERIVES.iter().any(|it| line.contains(it)) {
            inside = true;
            found.append(&mut pending);
        // A brace at the margin ends an item: rustfmt indents all others.
        } else if line == "}" {
            inside = false;
        // Other attributes may stand between the documentation and the derive.
        } else if !line.starts_with("#[") {
            pending.clear();
        }
    }
    found
}

/// What is wrong with a line.
fn banned(line: &str) -> impl Iterator<Item = String> {
    WORDS
        .lines()
        .filter_map(|row| row.split_once(" = "))
        .filter_map(move |(word, better)| {
            let found = match word.strip_prefix('^') {
                Some(word) => begins_a_sentence(line, word),
                None => contains(&line.to_lowercase(), word),
            };
            let word = word.trim_start_matches('^');
            found.then(|| format!("\"{word}\": write {better}"))
        })
}

/// Whether a word stands in a line, as a whole.
fn contains(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        [before, after]
            .iter()
            .flatten()
            .all(|it| !it.is_alphanumeric() && *it != '_')
    })
}

/// Whether a sentence of a line begins with a word, and is no question.
fn begins_a_sentence(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].trim_end_matches(['*', '_', ' ']);
        // Cells of tables, items of lists and what follows a colon begin like sentences.
        let begins = before.is_empty() || before.ends_with(['.', '|', ':', '-']);
        let rest = &line[at + word.len()..];
        let end = rest.find(['.', '?', '|']).map(|end| &rest[end..=end]);
        begins && rest.starts_with(' ') && end != Some("?")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(line: &str) -> usize {
        banned(line).count()
    }

    #[test]
    fn a_banned_word_is_found_as_a_whole() {
        assert_eq!(found("It is told."), 1);
        assert_eq!(found("A fold, untold and told_until."), 0);
        assert_eq!(found("Who waits is a victim."), 1);
        assert_eq!(found("Which rank, and who waits? Who waits?"), 0);
        assert_eq!(found("| Named is the one"), 1);
    }

    #[test]
    fn messages_are_looked_at_over_lines() {
        let code =
            "// It is \"told\".\nlet it = format!(\n    \"{told} of \\\n     what is told\",\n);\n";
        assert_eq!(literals(code), [(3, " of       what is told".to_owned())]);
        let source = SourceFile {
            name: "a.rs".to_owned(),
            text: code.to_owned(),
        };
        assert_eq!(
            in_messages(&[source]),
            ["a.rs:3: \"told\": write reported, known, given"]
        );
    }

    #[test]
    fn help_is_what_documents_arguments() {
        let source = "/// Help told.\n#[derive(Debug, clap::Args)]\n#[command()]\nstruct A {\n    \
                      /// Field told.\n    a: u8,\n}\n/// Inner told.\nstruct B;\n";
        let lines: Vec<usize> = help(source).into_iter().map(|(line, _)| line).collect();
        assert_eq!(lines, [1, 5]);
    }
}
