//! Text that came from elsewhere, made inert.

use std::fmt::{self, Display, Write};

use maud::{Escaper, Markup, PreEscaped, Render, html};
use serde::Serialize;

/// Text that came from elsewhere, in the place of an element's content or of a quoted attribute.
///
/// Control characters and those that turn the direction of writing are replaced: a name
/// must not rearrange the words around it.
pub(crate) struct Text<T>(pub(crate) T);

impl<T: Display> Render for Text<T> {
    fn render_to(&self, buffer: &mut String) {
        // A string takes all that is written; what cannot be formatted ends there.
        write!(Inert(Escaper::new(buffer)), "{}", self.0).unwrap_or_default();
    }
}

struct Inert<W>(W);

impl<W: Write> Write for Inert<W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.chars().try_for_each(|letter| {
            self.0.write_char(match letter {
                '\t' | '\n' => ' ',
                '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => '\u{fffd}',
                letter if letter.is_control() => '\u{fffd}',
                letter => letter,
            })
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
pub(crate) fn with_code(text: &str) -> Markup {
    html! {
        @for (at, part) in text.split('`').enumerate() {
            // Every second part stands between two backticks.
            @if at % 2 == 0 { (Text(part)) } @else { code { (Text(part)) } }
        }
    }
}

/// A value as JSON that may stand inside a `script` element.
///
/// The characters that could end the element occur only inside strings, where JSON lets
/// them be written as escapes.
pub(crate) fn json(value: &impl Serialize) -> Markup {
    let json = serde_json::to_string(value).unwrap_or_else(|_| "null".to_owned());
    let mut safe = String::with_capacity(json.len());
    for letter in json.chars() {
        match letter {
            '<' => safe += "\\u003c",
            '>' => safe += "\\u003e",
            '&' => safe += "\\u0026",
            // In JavaScript before ES2019 these two end a line, even inside a string.
            '\u{2028}' => safe += "\\u2028",
            '\u{2029}' => safe += "\\u2029",
            letter => safe.push(letter),
        }
    }
    PreEscaped(safe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_in_a_name_is_text() {
        let name = r#"<img src=x onerror="alert('1')">&amp;"#;
        assert_eq!(
            Text(name).render().0,
            "&lt;img src=x onerror=&quot;alert('1')&quot;&gt;&amp;amp;"
        );
    }

    #[test]
    fn a_name_cannot_turn_the_words_around_it() {
        assert_eq!(
            Text("a\u{202e}b\u{0}c\nd").render().0,
            "a\u{fffd}b\u{fffd}c d"
        );
    }

    #[test]
    fn json_cannot_end_its_script_and_reads_back() {
        let names = ["</script><!--", "a & b", "\u{2028}"];
        let json = json(&names).0;
        assert!(!json.contains(['<', '>', '&', '\u{2028}']), "{json}");
        assert_eq!(serde_json::from_str::<Vec<String>>(&json).unwrap(), names);
    }

    #[test]
    fn backticks_become_code_and_stay_escaped() {
        let text = with_code("wrap it in `laggard.stage(\"<a>\")` to see it");
        assert_eq!(
            text.0,
            "wrap it in <code>laggard.stage(&quot;&lt;a&gt;&quot;)</code> to see it"
        );
    }
}
