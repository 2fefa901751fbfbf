//! Finds the events of a Chrome trace in bytes, one after the other, and nothing else: no tree is
//! built and nothing is copied.

use memchr::{memchr2, memmem};

/// Why an event could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScanStop {
    /// The bytes end inside of it.
    More,
    /// It is not JSON from this place on.
    Malformed(usize),
}

/// The fields of an event that are used, as they stand in the file; empty if absent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RawEvent<'a> {
    pub(super) phase: &'a [u8],
    pub(super) category: &'a [u8],
    pub(super) name: &'a [u8],
    pub(super) process: &'a [u8],
    pub(super) thread: &'a [u8],
    pub(super) at: &'a [u8],
    pub(super) took: &'a [u8],
    pub(super) args: &'a [u8],
}

/// Bytes that end a number or a word. As a table, since each digit of a trace is looked at: that
/// takes less than five comparisons.
const ENDS_WORD: [bool; 256] = {
    let mut ends = [false; 256];
    let mut byte = 0;
    while byte < ends.len() {
        let is_end = matches!(byte as u8, b',' | b'}' | b']');
        ends[byte] = is_end || (byte as u8).is_ascii_whitespace();
        byte += 1;
    }
    ends
};

/// Reads the event that begins at the first byte, `{`; returns how long it is.
///
/// Strings come without their quotes, escapes still in them. Of a key that stands twice the last
/// counts. Trailing commas are passed over.
#[inline]
pub(super) fn event(bytes: &[u8]) -> Result<(RawEvent<'_>, usize), ScanStop> {
    let mut event = RawEvent::default();
    let length = members(bytes, |key, value| match key {
        b"ph" => event.phase = value,
        b"cat" => event.category = value,
        b"name" => event.name = value,
        b"pid" => event.process = value,
        b"tid" => event.thread = value,
        b"ts" => event.at = value,
        b"dur" => event.took = value,
        b"args" => event.args = value,
        _ => {}
    })?;
    Ok((event, length))
}

/// Passes over the object that begins at the first byte and hands out its members; returns how
/// long it is.
pub(super) fn members<'a>(
    bytes: &'a [u8],
    mut take: impl FnMut(&'a [u8], &'a [u8]),
) -> Result<usize, ScanStop> {
    let mut at = 1;
    loop {
        at = visible(bytes, at)?;
        match bytes[at] {
            b'}' => return Ok(at + 1),
            b',' => at += 1,
            b'"' => {
                let key_end = string_end(bytes, at)?;
                let key = &bytes[at + 1..key_end - 1];
                at = visible(bytes, key_end)?;
                if bytes[at] != b':' {
                    return Err(ScanStop::Malformed(at));
                }
                at = visible(bytes, at + 1)?;
                let end = value_end(bytes, at)?;
                take(key, unquoted(&bytes[at..end]));
                at = visible(bytes, end)?;
                if !matches!(bytes[at], b',' | b'}') {
                    return Err(ScanStop::Malformed(at));
                }
            }
            _ => return Err(ScanStop::Malformed(at)),
        }
    }
}

/// The place of the next byte that is not white space.
pub(super) fn visible(bytes: &[u8], from: usize) -> Result<usize, ScanStop> {
    bytes
        .get(from..)
        .unwrap_or_default()
        .iter()
        .position(|byte| !byte.is_ascii_whitespace())
        .map(|white| from + white)
        .ok_or(ScanStop::More)
}

/// The end of the value that begins at `at`.
pub(super) fn value_end(bytes: &[u8], at: usize) -> Result<usize, ScanStop> {
    match bytes.get(at).ok_or(ScanStop::More)? {
        b'"' => string_end(bytes, at),
        b'{' | b'[' => nested_end(bytes, at),
        b',' | b'}' | b']' | b':' => Err(ScanStop::Malformed(at)),
        _ => {
            // A number or a word: it ends where something else begins.
            let length = bytes[at..]
                .iter()
                .position(|byte| ENDS_WORD[usize::from(*byte)])
                .ok_or(ScanStop::More)?;
            Ok(at + length)
        }
    }
}

/// The end of the string that begins at `at`, its quote included.
///
/// A line that begins an event cannot be inside of a string: a quote is missing before it.
fn string_end(bytes: &[u8], at: usize) -> Result<usize, ScanStop> {
    let mut from = at + 1;
    loop {
        from = find(bytes, from, |word| {
            equal(word, b'"') | equal(word, b'\\') | equal(word, b'\n')
        })?;
        match bytes[from] {
            b'"' => return Ok(from + 1),
            b'\\' => from += 2,
            _ if begins_event_line(&bytes[from..]) => {
                return Err(ScanStop::Malformed(from));
            }
            // JSON allows no line break in a string, but metadata had some up to March 2024.
            _ => from += 1,
        }
    }
}

fn begins_event_line(line: &[u8]) -> bool {
    // The indents of Kineto's own writer. In a trace that was saved anew none is found, and a
    // missing quote costs more of it.
    line.starts_with(b"\n  {") || line.starts_with(b"\n  }") || line.starts_with(b"\n    \"")
}

/// The end of the object or list that begins at `at`.
fn nested_end(bytes: &[u8], at: usize) -> Result<usize, ScanStop> {
    // One depth for both kinds of brackets: only where the value ends is asked.
    let mut depth = 0usize;
    let mut from = at;
    loop {
        // Brackets are 0x5b, 0x5d, 0x7b and 0x7d. Other bytes that are alike in this (`Y`, `_`,
        // `y`) are looked at in vain.
        from = find(bytes, from, |word| {
            equal(word, b'"') | equal(word | repeated(0x26), 0x7f)
        })?;
        match bytes[from] {
            b'"' => {
                from = string_end(bytes, from)?;
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' => {
                depth -= 1;
                if depth == 0 {
                    return Ok(from + 1);
                }
            }
            _ => {}
        }
        from += 1;
    }
}

/// The first place from `from` on whose byte is hit, eight bytes at a time: what is looked for is
/// seldom further away than that, too near for a call to pay.
fn find(bytes: &[u8], mut from: usize, hits: impl Fn(u64) -> u64) -> Result<usize, ScanStop> {
    loop {
        let rest = bytes.get(from..).ok_or(ScanStop::More)?;
        let (word, is_last) = if let Some(word) = rest.first_chunk() {
            (*word, false)
        } else {
            // Filled up with zeros, which nobody looks for.
            let mut word = [0; 8];
            word[..rest.len()].copy_from_slice(rest);
            (word, true)
        };
        let found = hits(u64::from_le_bytes(word));
        if found != 0 {
            return Ok(from + found.trailing_zeros() as usize / 8);
        }
        if is_last {
            return Err(ScanStop::More);
        }
        from += 8;
    }
}

/// Marks the lowest byte of `word` that is `byte` by its highest bit; none below it.
fn equal(word: u64, byte: u8) -> u64 {
    // The usual test for a zero byte. Its borrow can only mark bytes above the first one.
    let differs = word ^ repeated(byte);
    differs.wrapping_sub(repeated(1)) & !differs & repeated(0x80)
}

const fn repeated(byte: u8) -> u64 {
    u64::from_le_bytes([byte; 8])
}

/// A string without its quotes, anything else as it is.
pub(super) fn unquoted(value: &[u8]) -> &[u8] {
    match value {
        [b'"', inner @ .., b'"'] => inner,
        other => other,
    }
}

/// The text of a string: escapes resolved, what is not UTF-8 replaced.
pub(super) fn text(raw: &[u8]) -> std::borrow::Cow<'_, str> {
    if memchr2(b'\\', b'\n', raw).is_none() {
        return String::from_utf8_lossy(raw);
    }
    let quoted = [b"\"", raw, b"\""].concat();
    match serde_json::from_slice::<String>(&quoted) {
        Ok(text) => text.into(),
        // An escape that is none, such as in paths of Windows up to April 2023: better odd than
        // lost.
        Err(_) => String::from_utf8_lossy(raw),
    }
}

/// Where the next event begins, by the key that stands first in events of this file.
pub(super) fn next_event(bytes: &[u8], first_key: &[u8]) -> Option<usize> {
    let quoted = [b"\"", first_key, b"\""].concat();
    let mut from = 0;
    loop {
        let key = from + memmem::find(bytes.get(from..)?, &quoted)?;
        // The key may stand elsewhere too: an event begins where a brace comes right before it.
        let before = bytes[..key]
            .iter()
            .rposition(|byte| !byte.is_ascii_whitespace());
        match before {
            Some(brace) if bytes[brace] == b'{' => return Some(brace),
            _ => from = key + quoted.len(),
        }
    }
}

/// A time in microseconds as nanoseconds, exactly: digits beyond the third after the point are
/// less than a nanosecond. `None` if it is no number of this century.
pub(super) fn nanoseconds(raw: &[u8]) -> Option<i64> {
    let (negative, digits) = match raw {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    // In whole numbers: an absolute time has 19 digits, and a float would round it to 256 ns.
    let mut value: i64 = 0;
    let mut decimals: Option<u32> = None;
    for (at, byte) in digits.iter().enumerate() {
        match byte {
            b'0'..=b'9' => {
                if decimals == Some(3) {
                    continue;
                }
                value = value.checked_mul(10)?.checked_add(i64::from(byte - b'0'))?;
                decimals = decimals.map(|count| count + 1);
            }
            b'.' if decimals.is_none() && at > 0 => decimals = Some(0),
            // Only a tool that went through floats writes this: the digits are gone already.
            b'e' | b'E' => return exponential(raw),
            _ => return None,
        }
    }
    if digits.is_empty() {
        return None;
    }
    let missing = 3 - decimals.unwrap_or(0);
    let value = value.checked_mul(10i64.pow(missing))?;
    Some(if negative { -value } else { value })
}

fn exponential(raw: &[u8]) -> Option<i64> {
    let value: f64 = std::str::from_utf8(raw).ok()?.parse().ok()?;
    let value = (value * 1e3).round();
    (value.abs() < i64::MAX as f64).then_some(value as i64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn times_are_exact_in_all_three_generations() {
        assert_eq!(
            nanoseconds(b"1694128201421205"),
            Some(1_694_128_201_421_205_000)
        );
        assert_eq!(
            nanoseconds(b"1712195495519689.123"),
            Some(1_712_195_495_519_689_123)
        );
        assert_eq!(
            nanoseconds(b"4354263798240.97"),
            Some(4_354_263_798_240_970)
        );
        assert_eq!(nanoseconds(b"2.08"), Some(2080));
        assert_eq!(nanoseconds(b"-1.5"), Some(-1500));
        assert_eq!(nanoseconds(b"1.0005009"), Some(1000));
        assert_eq!(nanoseconds(b"1.5e3"), Some(1_500_000));
        for bad in [
            &b""[..],
            b"NaN",
            b"-",
            b".5",
            b"1.2.3",
            b"99999999999999999999",
            b"1e99",
        ] {
            assert_eq!(nanoseconds(bad), None, "{}", String::from_utf8_lossy(bad));
        }
    }

    #[test]
    fn an_event_is_found_whatever_its_spelling() {
        let bytes = br#"{ "args": {"a": ["}", {"b\"": 1}]}, "ph":"X",
            "ts": 12.5, "name": "a \"b\"", "dur":3, "ph": "Y", },"#;
        let (event, length) = super::event(bytes).unwrap();
        assert_eq!(length, bytes.len() - 1);
        assert_eq!(event.phase, b"Y");
        assert_eq!((event.at, event.took), (&b"12.5"[..], &b"3"[..]));
        assert_eq!(text(event.name), "a \"b\"");
    }

    #[test]
    fn what_is_cut_off_is_distinguished_from_what_is_wrong() {
        let whole = br#"{"ph": "X", "name": "a", "args": {"b": [1]}}"#;
        for end in 1..whole.len() {
            assert_eq!(event(&whole[..end]).unwrap_err(), ScanStop::More, "{end}");
        }
        let bare = br#"{"ph": "X", "name": "a "b" c"}"#;
        assert!(matches!(event(bare), Err(ScanStop::Malformed(_))));
        let open = b"{\n    \"name\": \"a\n  },\n  {\n    \"ph\": \"X\"}";
        assert!(matches!(event(open), Err(ScanStop::Malformed(_))));
    }

    #[test]
    fn the_next_event_is_the_one_that_begins_like_the_others() {
        let bytes = br#"nonsense "ph" { "name": 1}, {  "ph": "X"}"#;
        let at = next_event(bytes, b"ph").unwrap();
        assert!(bytes[at..].starts_with(b"{  \"ph\""));
        assert_eq!(next_event(bytes, b"absent"), None);
    }

    fn any_json() -> impl Strategy<Value = serde_json::Value> {
        use serde_json::Value;
        let leaf = prop_oneof![
            any::<i64>().prop_map(Value::from),
            ".*".prop_map(Value::from),
            Just(Value::Null)
        ];
        leaf.prop_recursive(3, 20, 5, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                proptest::collection::btree_map(".{0,5}", inner, 0..5)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        /// serde_json is the oracle.
        #[test]
        fn members_are_what_a_whole_parser_finds(
            fields in proptest::collection::btree_map("[a-z]{1,5}", any_json(), 0..6), pretty: bool,
        ) {
            let object = serde_json::Value::Object(fields.clone().into_iter().collect());
            let bytes = if pretty { serde_json::to_vec_pretty(&object) } else { serde_json::to_vec(&object) };
            let bytes = bytes.unwrap();
            let mut found = std::collections::BTreeMap::new();
            let length = members(&bytes, |key, value| {
                let is_string = value.as_ptr() as usize - bytes.as_ptr() as usize > 0
                    && bytes[value.as_ptr() as usize - bytes.as_ptr() as usize - 1] == b'"';
                let value = if is_string {
                    serde_json::Value::from(text(value).into_owned())
                } else {
                    serde_json::from_slice(value).unwrap()
                };
                found.insert(text(key).into_owned(), value);
            });
            prop_assert_eq!(length, Ok(bytes.len()));
            prop_assert_eq!(found, fields);
        }

        #[test]
        fn any_bytes_are_passed_over_without_harm(bytes: Vec<u8>) {
            let bytes = [b"{".to_vec(), bytes].concat();
            if let Ok((_, length)) = event(&bytes) {
                prop_assert!(length <= bytes.len());
            }
            let _ = nanoseconds(&bytes[1..]);
        }
    }
}
