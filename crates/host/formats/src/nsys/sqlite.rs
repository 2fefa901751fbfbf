//! Reads the tables of an SQLite file, row by row: what a whole database engine would be too much
//! for, and what must not trust its bytes.
//!
//! # Source
//! Database File Format, sqlite.org/fileformat2.html.

use std::collections::BTreeMap;
use std::io::{self, Read, Seek, SeekFrom};

/// What every SQLite file begins with.
pub(crate) const MAGIC: &[u8] = b"SQLite format 3\0";
/// Bytes one row may have; longer ones are passed over.
const MAX_ROW_BYTES: usize = 16 << 20;

/// A value of a row.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Nothing,
    Number(i64),
    Real(f64),
    Text(String),
}

impl Value {
    pub(super) fn number(&self) -> Option<i64> {
        match self {
            Self::Number(number) => Some(*number),
            _ => None,
        }
    }

    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }
}

/// A table: where it begins and what its columns are called.
#[derive(Clone, Debug)]
struct Table {
    root: u32,
    columns: Vec<String>,
    /// The column that is the row's number, which is not stored again.
    row_number: Option<usize>,
}

/// An SQLite file.
pub(super) struct Database<R> {
    file: R,
    page_bytes: usize,
    /// Bytes of a page that are used.
    usable: usize,
    pages: u32,
    tables: BTreeMap<String, Table>,
    /// Pages and rows that could not be read.
    pub(super) damaged: u64,
}

fn refused(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

impl<R: Read + Seek> Database<R> {
    /// Opens a file and reads what tables it has.
    pub(super) fn open(mut file: R) -> io::Result<Self> {
        let mut head = [0; 100];
        file.seek(SeekFrom::Start(0))?;
        file.read_exact(&mut head)
            .map_err(|_short| refused("it ends in its first 100 bytes"))?;
        if !head.starts_with(MAGIC) {
            return Err(refused("it is no SQLite file"));
        }
        let page_bytes = match u16::from_be_bytes([head[16], head[17]]) {
            1 => 65_536,
            bytes => usize::from(bytes),
        };
        let usable = page_bytes.saturating_sub(usize::from(head[20]));
        if !page_bytes.is_power_of_two() || page_bytes < 512 || usable < 480 {
            return Err(refused("its pages have no size that SQLite uses"));
        }
        let encoding = u32::from_be_bytes([head[56], head[57], head[58], head[59]]);
        if encoding > 1 {
            return Err(refused("its text is UTF-16: export it with UTF-8"));
        }
        let bytes = file.seek(SeekFrom::End(0))?;
        let pages = u32::try_from(bytes.div_ceil(page_bytes as u64)).unwrap_or(u32::MAX);
        let tables = BTreeMap::new();
        let mut database = Self { file, page_bytes, usable, pages, tables, damaged: 0 };
        let schema = Table { root: 1, columns: Vec::new(), row_number: None };
        let mut tables = BTreeMap::new();
        database.scan(&schema, &[0, 1, 3, 4], |values| {
            let [kind, name, root, sql] = values else { return };
            let root = root.number().and_then(|root| u32::try_from(root).ok());
            if kind.text() == Some("table")
                && let (Some(name), Some(root), Some(sql)) =
                    (name.text(), root, sql.text())
                && let Some((columns, row_number)) = columns(sql)
            {
                tables.insert(name.to_owned(), Table { root, columns, row_number });
            }
        })?;
        database.tables = tables;
        Ok(database)
    }

    pub(super) fn has(&self, table: &str) -> bool {
        self.tables.contains_key(table)
    }

    /// Hands out these columns of every row of a table; nothing where there is no such table,
    /// [`Value::Nothing`] where there is no such column.
    pub(super) fn rows(
        &mut self,
        table: &str,
        columns: &[&str],
        each: impl FnMut(&[Value]),
    ) -> io::Result<()> {
        let Some(table) = self.tables.get(table).cloned() else { return Ok(()) };
        let places = columns.iter().map(|column| {
            let place = table.columns.iter().position(|c| c.eq_ignore_ascii_case(column));
            place.unwrap_or(usize::MAX)
        });
        self.scan(&table, &places.collect::<Vec<_>>(), each)
    }

    fn scan(
        &mut self,
        table: &Table,
        places: &[usize],
        mut each: impl FnMut(&[Value]),
    ) -> io::Result<()> {
        let mut open = vec![table.root];
        // A tree has no page twice.
        let mut left = self.pages;
        let mut page = vec![0; self.page_bytes];
        let mut values = vec![Value::Nothing; places.len()];
        while let Some(number) = open.pop() {
            let Some(next) = left.checked_sub(1) else {
                self.damaged += 1;
                return Ok(());
            };
            left = next;
            if !self.page(number, &mut page)? {
                self.damaged += 1;
                continue;
            }
            let head = if number == 1 { 100 } else { 0 };
            let cells = usize::from(u16_at(&page, head + 3).unwrap_or(0));
            match page.get(head) {
                Some(5) => {
                    let mut below: Vec<u32> = (0..cells)
                        .filter_map(|cell| {
                            let at = u16_at(&page, head + 12 + 2 * cell)?;
                            u32_at(&page, usize::from(at))
                        })
                        .collect();
                    below.extend(u32_at(&page, head + 8));
                    open.extend(below.into_iter().rev());
                }
                Some(13) => {
                    for cell in 0..cells {
                        let row = self.row(&page, head + 8 + 2 * cell)?;
                        match row.as_ref().map(|(row, payload)| {
                            decode(payload, places, table.row_number, *row, &mut values)
                        }) {
                            Some(Some(())) => each(&values),
                            _ => self.damaged += 1,
                        }
                    }
                }
                _ => self.damaged += 1,
            }
        }
        Ok(())
    }

    /// Reads a page; `false` if there is none of this number.
    fn page(&mut self, number: u32, into: &mut [u8]) -> io::Result<bool> {
        let Some(before) = number.checked_sub(1).filter(|_| number <= self.pages) else {
            return Ok(false);
        };
        self.file.seek(SeekFrom::Start(u64::from(before) * self.page_bytes as u64))?;
        let mut filled = 0;
        while filled < into.len() {
            match self.file.read(&mut into[filled..])? {
                0 => break,
                read => filled += read,
            }
        }
        into[filled..].fill(0);
        Ok(filled > 0)
    }

    /// The number and the payload of a row, overflow pages included.
    fn row(&mut self, page: &[u8], pointer: usize) -> io::Result<Option<(i64, Vec<u8>)>> {
        let head = || {
            let at = usize::from(u16_at(page, pointer)?);
            let (length, used) = varint(page.get(at..)?)?;
            let length = usize::try_from(length).ok().filter(|l| *l <= MAX_ROW_BYTES)?;
            let (row, also) = varint(page.get(at + used..)?)?;
            Some((length, row, at + used + also))
        };
        let Some((length, row, from)) = head() else { return Ok(None) };
        let most = self.usable - 35;
        if length <= most {
            let payload = page.get(from..from + length);
            return Ok(payload.map(|payload| (row, payload.to_vec())));
        }
        let least = (self.usable - 12) * 32 / 255 - 23;
        let here = least + (length - least) % (self.usable - 4);
        let here = if here <= most { here } else { least };
        let Some(local) = page.get(from..from + here) else { return Ok(None) };
        let mut payload = local.to_vec();
        let mut next = u32_at(page, from + here).unwrap_or(0);
        let mut overflow = vec![0; self.page_bytes];
        while payload.len() < length {
            if next == 0 || !self.page(next, &mut overflow)? {
                return Ok(None);
            }
            let part = (length - payload.len()).min(self.usable - 4);
            payload.extend_from_slice(&overflow[4..4 + part]);
            next = u32_at(&overflow, 0).unwrap_or(0);
        }
        Ok(Some((row, payload)))
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// A number of one to nine bytes, and how many it has.
fn varint(bytes: &[u8]) -> Option<(i64, usize)> {
    let mut value: u64 = 0;
    for (at, byte) in bytes.iter().take(9).enumerate() {
        if at == 8 {
            return Some(((value << 8 | u64::from(*byte)).cast_signed(), 9));
        }
        value = value << 7 | u64::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            return Some((value.cast_signed(), at + 1));
        }
    }
    None
}

/// Finds the wanted values of a record.
fn decode(
    payload: &[u8],
    places: &[usize],
    row_number: Option<usize>,
    row: i64,
    values: &mut [Value],
) -> Option<()> {
    values.fill(Value::Nothing);
    let (head, mut at) = varint(payload)?;
    let head = usize::try_from(head).ok().filter(|head| *head <= payload.len())?;
    let mut from = head;
    let mut column = 0;
    while at < head {
        let (kind, used) = varint(&payload[at..head])?;
        at += used;
        let length = match kind {
            0 | 8 | 9 => 0,
            1..=4 => kind as usize,
            5 => 6,
            6 | 7 => 8,
            kind if kind >= 12 => usize::try_from((kind - 12) / 2).ok()?,
            _ => return None,
        };
        let bytes = payload.get(from..from.checked_add(length)?)?;
        from += length;
        for (value, _) in values.iter_mut().zip(places).filter(|(_, p)| **p == column) {
            *value = match kind {
                0 if row_number == Some(column) => Value::Number(row),
                8 | 9 => Value::Number(kind - 8),
                1..=6 => Value::Number(signed(bytes)),
                7 => Value::Real(f64::from_be_bytes(bytes.try_into().ok()?)),
                kind if kind >= 13 && kind % 2 == 1 => {
                    Value::Text(String::from_utf8_lossy(bytes).into_owned())
                }
                _ => Value::Nothing,
            };
        }
        column += 1;
    }
    Some(())
}

fn signed(bytes: &[u8]) -> i64 {
    let first = bytes.first().map_or(0, |byte| i64::from(byte.cast_signed()));
    bytes.iter().skip(1).fold(first, |value, byte| value << 8 | i64::from(*byte))
}

/// The columns of a `CREATE TABLE`, and which of them is the row's number; `None` for a table
/// that is kept in another way.
fn columns(sql: &str) -> Option<(Vec<String>, Option<usize>)> {
    let lines = sql.lines().map(|line| line.split("--").next().unwrap_or_default());
    let sql = lines.collect::<Vec<_>>().join(" ");
    let (open, close) = (sql.find('(')?, sql.rfind(')')?);
    if sql[close..].to_ascii_uppercase().contains("WITHOUT ROWID") {
        return None;
    }
    let mut columns = Vec::new();
    let mut row_number = None;
    let mut depth = 0;
    let mut start = open + 1;
    let body = &sql[..close];
    let mut definitions = Vec::new();
    for (at, byte) in body.bytes().enumerate().skip(open + 1) {
        match byte {
            b'(' => depth += 1,
            b')' => depth -= 1,
            b',' if depth == 0 => {
                definitions.push(&body[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    definitions.push(body.get(start..)?);
    for definition in definitions {
        let mut words = definition.split_ascii_whitespace();
        let Some(first) = words.next() else { continue };
        let constraint = ["PRIMARY", "UNIQUE", "CHECK", "FOREIGN", "CONSTRAINT"];
        if constraint.iter().any(|word| first.eq_ignore_ascii_case(word)) {
            continue;
        }
        let rest = words.collect::<Vec<_>>().join(" ").to_ascii_uppercase();
        if rest.starts_with("INTEGER") && rest.contains("PRIMARY KEY") {
            row_number = Some(columns.len());
        }
        columns.push(first.trim_matches(['"', '`', '[', ']', '\'']).to_owned());
    }
    Some((columns, row_number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_found_behind_comments_and_constraints() {
        let sql = "CREATE TABLE StringIds (\n  -- Strings, once.\n  id INTEGER NOT NULL PRIMARY \
                   KEY, -- ID, of the value\n  value TEXT DEFAULT (1, 2), [end] INT,\n\
                   UNIQUE (value))";
        let (names, row_number) = columns(sql).unwrap();
        assert_eq!((names.join(" ").as_str(), row_number), ("id value end", Some(0)));
        assert!(columns("CREATE TABLE t (a PRIMARY KEY) WITHOUT ROWID").is_none());
    }

    #[test]
    fn numbers_of_all_lengths_are_read() {
        assert_eq!(varint(&[0x7f]), Some((127, 1)));
        assert_eq!(varint(&[0x81, 0x00]), Some((128, 2)));
        assert_eq!(varint(&[0xff; 9]), Some((-1, 9)));
        assert_eq!(varint(&[0x80; 3]), None);
        assert_eq!(signed(&[0xff, 0xfe]), -2);
        assert_eq!(signed(&[0x01, 0x00]), 256);
    }

    #[test]
    fn a_record_gives_what_is_asked_for() {
        let payload = [5, 0, 1, 8, 15, 0xfb, b'a'];
        let mut values = vec![Value::Nothing; 4];
        decode(&payload, &[3, 0, 1, 9], Some(0), 77, &mut values).unwrap();
        let text = Value::Text("a".to_owned());
        assert_eq!(values, [text, Value::Number(77), Value::Number(-5), Value::Nothing]);
    }
}
