//! Text that came from elsewhere, made inert.

use std::fmt::{self, Display, Write};

use serde::Serialize;

/// Text as it may stand in HTML, between tags and in quoted attributes.
///
/// Control characters and those that turn the direction of writing are replaced: a name
/// must not rearrange the words around it.
pub(crate) struct Text<T>(pub(crate) T);

impl<T: Display> Display for Text<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaping(formatter), "{}", self.0)
    }
}

struct Escaping<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl Write for Escaping<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.chars().try_for_each(|letter| match letter {
            '&' => self.0.write_str("&amp;"),
            '<' => self.0.write_str("&lt;"),
            '>' => self.0.write_str("&gt;"),
            '"' => self.0.write_str("&quot;"),
            '\'' => self.0.write_str("&#39;"),
            '\t' | '\n' => self.0.write_char(' '),
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => self.0.write_char('\u{fffd}'),
            letter if letter.is_control() => self.0.write_char('\u{fffd}'),
            letter => self.0.write_char(letter),
        })
    }
}

/// A name as one part of an address.
pub(crate) fn part_of_address(name: &str) -> String {
    let mut part = String::new();
    for byte in name.bytes() {
        // RFC 3986 calls these unreserved: they mean the same in every part of an address.
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            part.push(char::from(byte));
        } else {
            part += &format!("%{byte:02X}");
        }
    }
    part
}

/// Text in which `code` stands between backticks, as in an incident's advice.
pub(crate) fn with_code(text: &str) -> String {
    text.split('`')
        .enumerate()
        // Every second part stands between two backticks.
        .map(|(at, part)| match at % 2 {
            0 => Text(part).to_string(),
            _ => format!("<code>{}</code>", Text(part)),
        })
        .collect()
}

/// A value as JSON that may stand inside a `script` element.
///
/// The characters that could end the element occur only inside strings, where JSON lets
/// them be written as escapes.
pub(crate) fn json(value: &impl Serialize) -> String {
    let json = serde_json::to_string(value).unwrap_or_else(|_| "null".to_owned());
    let mut safe = String::with_capacity(json.len());
    for letter in json.chars() {
        match letter {
            '<' => safe += "\\u003c",
            '>' => safe += "\\u003e",
            '&' => safe += "\\u0026",
            '\u{2028}' => safe += "\\u2028",
            '\u{2029}' => safe += "\\u2029",
            letter => safe.push(letter),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_in_a_name_is_text() {
        let name = r#"<img src=x onerror="alert('1')">&amp;"#;
        let text = Text(name).to_string();
        assert_eq!(
            text,
            "&lt;img src=x onerror=&quot;alert(&#39;1&#39;)&quot;&gt;&amp;amp;"
        );
    }

    #[test]
    fn a_name_cannot_turn_the_words_around_it() {
        assert_eq!(
            Text("a\u{202e}b\u{0}c\nd").to_string(),
            "a\u{fffd}b\u{fffd}c d"
        );
    }

    #[test]
    fn json_cannot_end_its_script_and_reads_back() {
        let names = ["</script><!--", "a & b", "\u{2028}"];
        let json = json(&names);
        assert!(!json.contains(['<', '>', '&', '\u{2028}']), "{json}");
        assert_eq!(serde_json::from_str::<Vec<String>>(&json).unwrap(), names);
    }

    #[test]
    fn backticks_become_code_and_stay_escaped() {
        let text = with_code("wrap it in `laggard.stage(\"<a>\")` to see it");
        assert_eq!(
            text,
            "wrap it in <code>laggard.stage(&quot;&lt;a&gt;&quot;)</code> to see it"
        );
    }
}
