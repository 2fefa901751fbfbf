//! Just enough of Python's pickle to read a Flight Recorder dump: data, never code.

use std::collections::HashMap;

use serde_json::{Map, Value};

/// Values a dump may have; a hostile one would have more.
const MAX_VALUES: usize = 4_000_000;
/// Bytes of text that count as one more value: about what a value takes.
const VALUE_BYTES: usize = 32;
/// How deep lists and dictionaries may be nested.
const MAX_DEPTH: usize = 32;

/// A pickle that is not read, and the byte at which that became clear.
#[derive(Debug)]
pub(crate) struct PickleError {
    pub(crate) at: usize,
    pub(crate) reason: String,
}

#[derive(Clone, Debug)]
enum Node {
    Leaf(Value),
    List(Vec<usize>),
    /// Keys and values in turns.
    Dict(Vec<usize>),
}

/// Reads a pickle into JSON. Opcodes that import or call anything are refused.
pub(crate) fn read(bytes: &[u8]) -> Result<Value, PickleError> {
    let mut machine = PickleMachine {
        bytes,
        at: 0,
        nodes: Vec::new(),
        stack: Vec::new(),
        marks: Vec::new(),
        memo: HashMap::new(),
    };
    let root = machine.run()?;
    // Counted again: what is shared is one node here and many values in JSON.
    let mut left = MAX_VALUES;
    machine.json(root, MAX_DEPTH, &mut left)
}

struct PickleMachine<'a> {
    bytes: &'a [u8],
    at: usize,
    nodes: Vec<Node>,
    stack: Vec<usize>,
    marks: Vec<usize>,
    memo: HashMap<u32, usize>,
}

impl PickleMachine<'_> {
    fn run(&mut self) -> Result<usize, PickleError> {
        loop {
            let opcode = self.number::<1>()?[0];
            // What pickles of plain data are made of, and no more: any other opcode may run code.
            match opcode {
                // Protocol and length of a frame: the data says the same without them.
                0x80 => drop(self.number::<1>()?),
                0x95 => drop(self.number::<8>()?),
                b'}' => self.push(Node::Dict(Vec::new())),
                // JSON has one kind of list: tuples become it too.
                b']' | b')' => self.push(Node::List(Vec::new())),
                b'(' => self.marks.push(self.stack.len()),
                b'N' => self.push(Node::Leaf(Value::Null)),
                0x88 => self.push(Node::Leaf(Value::Bool(true))),
                0x89 => self.push(Node::Leaf(Value::Bool(false))),
                b'K' => {
                    let value = u8::from_le_bytes(self.number()?);
                    self.push(Node::Leaf(value.into()));
                }
                b'M' => {
                    let value = u16::from_le_bytes(self.number()?);
                    self.push(Node::Leaf(value.into()));
                }
                b'J' => {
                    let value = i32::from_le_bytes(self.number()?);
                    self.push(Node::Leaf(value.into()));
                }
                0x8a => {
                    let value = self.long()?;
                    self.push(Node::Leaf(value.into()));
                }
                b'G' => {
                    let value = f64::from_be_bytes(self.number()?);
                    self.push(Node::Leaf(value.into()));
                }
                b'X' => {
                    let length = u32::from_le_bytes(self.number()?);
                    self.text(length as usize)?;
                }
                0x8c => {
                    let length = u8::from_le_bytes(self.number()?);
                    self.text(length.into())?;
                }
                b'q' => {
                    let place = u8::from_le_bytes(self.number()?);
                    self.remember(place.into())?;
                }
                b'r' => {
                    let place = u32::from_le_bytes(self.number()?);
                    self.remember(place)?;
                }
                // Protocol 4 counts for itself what it remembers.
                0x94 => {
                    let place = u32::try_from(self.memo.len()).unwrap_or(u32::MAX);
                    self.remember(place)?;
                }
                b'h' => {
                    let place = u8::from_le_bytes(self.number()?);
                    self.recall(place.into())?;
                }
                b'j' => {
                    let place = u32::from_le_bytes(self.number()?);
                    self.recall(place)?;
                }
                0x85..=0x87 => {
                    let items = self.pop(usize::from(opcode - 0x84))?;
                    self.push(Node::List(items));
                }
                b't' => {
                    let items = self.pop_mark()?;
                    self.push(Node::List(items));
                }
                b'a' => {
                    let items = self.pop(1)?;
                    self.extend(items)?;
                }
                b'e' | b'u' => {
                    let items = self.pop_mark()?;
                    self.extend(items)?;
                }
                b's' => {
                    let items = self.pop(2)?;
                    self.extend(items)?;
                }
                b'.' => {
                    return self.stack.pop().ok_or_else(|| self.refuse("it ends empty"));
                }
                other => {
                    let reason = format!("opcode {other:#04x} has no place in a dump");
                    return Err(self.refuse(&reason));
                }
            }
            if self.nodes.len() > MAX_VALUES {
                return Err(self.refuse("too many values"));
            }
        }
    }

    fn refuse(&self, reason: &str) -> PickleError {
        PickleError {
            at: self.at,
            reason: reason.to_owned(),
        }
    }

    fn take(&mut self, count: usize) -> Result<&[u8], PickleError> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let Some(taken) = rest.get(..count) else {
            return Err(self.refuse("it is cut off"));
        };
        self.at += count;
        Ok(taken)
    }

    fn number<const N: usize>(&mut self) -> Result<[u8; N], PickleError> {
        let mut number = [0; N];
        number.copy_from_slice(self.take(N)?);
        Ok(number)
    }

    /// An integer of any length; what no dump needs reads as the largest one.
    fn long(&mut self) -> Result<i64, PickleError> {
        let length = self.number::<1>()?[0];
        let bytes = self.take(length.into())?;
        let negative = bytes.last().is_some_and(|last| last & 0x80 != 0);
        let mut wide = if negative { [0xff; 8] } else { [0; 8] };
        let Some(room) = wide.get_mut(..bytes.len()) else {
            return Ok(i64::MAX);
        };
        room.copy_from_slice(bytes);
        Ok(i64::from_le_bytes(wide))
    }

    fn text(&mut self, length: usize) -> Result<(), PickleError> {
        let text = String::from_utf8_lossy(self.take(length)?).into_owned();
        self.push(Node::Leaf(text.into()));
        Ok(())
    }

    fn push(&mut self, node: Node) {
        self.nodes.push(node);
        self.stack.push(self.nodes.len() - 1);
    }

    fn pop(&mut self, count: usize) -> Result<Vec<usize>, PickleError> {
        let Some(from) = self.stack.len().checked_sub(count) else {
            return Err(self.refuse("a value is missing"));
        };
        Ok(self.stack.split_off(from))
    }

    fn pop_mark(&mut self) -> Result<Vec<usize>, PickleError> {
        match self.marks.pop() {
            // What stood below the mark may have been popped since, in a hostile pickle.
            Some(mark) if mark <= self.stack.len() => Ok(self.stack.split_off(mark)),
            _ => Err(self.refuse("a mark is missing")),
        }
    }

    fn extend(&mut self, items: Vec<usize>) -> Result<(), PickleError> {
        let top = self.stack.last().copied();
        match top.and_then(|top| self.nodes.get_mut(top)) {
            Some(Node::List(list) | Node::Dict(list)) => list.extend(items),
            _ => return Err(self.refuse("nothing to add to")),
        }
        Ok(())
    }

    fn remember(&mut self, place: u32) -> Result<(), PickleError> {
        let Some(top) = self.stack.last() else {
            return Err(self.refuse("nothing to remember"));
        };
        // In a map: places are the writer's choice, and a list would be as long as the highest.
        self.memo.insert(place, *top);
        Ok(())
    }

    fn recall(&mut self, place: u32) -> Result<(), PickleError> {
        let Some(node) = self.memo.get(&place) else {
            return Err(self.refuse("a value it refers to is missing"));
        };
        self.stack.push(*node);
        Ok(())
    }

    /// The value as JSON. What is shared is copied, so the copies are counted.
    fn json(&self, node: usize, depth: usize, left: &mut usize) -> Result<Value, PickleError> {
        let enough = depth > 0 && *left > 0;
        let (Some(node), true) = (self.nodes.get(node), enough) else {
            return Err(self.refuse("it is too large or too deep"));
        };
        *left -= 1;
        match node {
            Node::Leaf(value) => {
                let bytes = value.as_str().map_or(0, str::len);
                *left = left.saturating_sub(bytes / VALUE_BYTES);
                Ok(value.clone())
            }
            Node::List(items) => {
                let items = items.iter().map(|item| self.json(*item, depth - 1, left));
                items.collect::<Result<_, _>>().map(Value::Array)
            }
            Node::Dict(items) => {
                let mut map = Map::new();
                for pair in items.chunks_exact(2) {
                    let key = match self.json(pair[0], depth - 1, left)? {
                        Value::String(key) => key,
                        // Numbers of groups are keys in a pickle. In PyTorch's own JSON they are
                        // text.
                        other => other.to_string(),
                    };
                    map.insert(key, self.json(pair[1], depth - 1, left)?);
                }
                Ok(Value::Object(map))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dictionary_with_shared_values_is_read() {
        // {"a": [1, -2, None, True], "b": the same list}
        let bytes =
            b"\x80\x02}q\x00(X\x01\0\0\0a]q\x01(K\x01J\xfe\xff\xff\xffN\x88eX\x01\0\0\0bh\x01u.";
        let expected = serde_json::json!({"a": [1, -2, null, true], "b": [1, -2, null, true]});
        assert_eq!(read(bytes).unwrap(), expected);
    }

    #[test]
    fn integers_of_any_length_are_read() {
        let read = |bytes: &[u8]| read(bytes).unwrap();
        assert_eq!(read(b"\x8a\x00."), 0);
        assert_eq!(read(b"\x8a\x01\xff."), -1);
        assert_eq!(
            read(b"\x8a\x08\x2d\x7c\x5e\x6b\xc1\xe0\xe9\x18."),
            1_795_213_047_818_517_549_i64
        );
        assert_eq!(read(b"\x8a\x09\0\0\0\0\0\0\0\0\x01."), i64::MAX);
    }

    #[test]
    fn code_is_refused_and_not_run() {
        let refused = read(b"cos\nsystem\n(X\x02\0\0\0lstR.").unwrap_err();
        assert_eq!((refused.at, refused.reason.contains("0x63")), (1, true));
    }

    #[test]
    fn lists_that_contain_themselves_or_explode_are_refused() {
        assert!(
            read(b"]q\x00h\x00a.")
                .unwrap_err()
                .reason
                .contains("too deep")
        );
        let mut bomb = b"]q\x00K\x01a".to_vec();
        for level in 1..30u8 {
            bomb.extend([
                b']',
                b'q',
                level,
                b'(',
                b'h',
                level - 1,
                b'h',
                level - 1,
                b'e',
            ]);
        }
        bomb.push(b'.');
        assert!(read(&bomb).unwrap_err().reason.contains("too large"));
    }

    #[test]
    fn a_long_text_that_is_shared_often_is_refused() {
        let mut bomb = b"(X\x40\x42\x0f\0".to_vec();
        bomb.extend(b"x".repeat(1_000_000));
        bomb.extend(b"q\x00");
        bomb.extend(b"h\x00".repeat(100_000));
        bomb.extend(b"t.");
        assert!(read(&bomb).unwrap_err().reason.contains("too large"));
    }

    #[test]
    fn every_cut_is_noticed() {
        let whole = b"\x80\x02}q\x00(X\x01\0\0\0a]q\x01(K\x01NeX\x01\0\0\0bh\x01u.";
        for cut in 0..whole.len() {
            assert!(read(&whole[..cut]).is_err(), "{cut}");
        }
    }
}
