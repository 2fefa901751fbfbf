//! Writes flat Parquet files: one group of rows, plain values, nothing compressed.
//!
//! Source: the Parquet format, version 2, data pages of version 1, and Thrift's compact protocol.

use super::parquet::MAGIC;
use super::thrift::{BINARY, LIST, STRUCT};

/// Values of a page.
const PAGE: usize = 1 << 20;
/// Types of Thrift's fields: whole numbers of 32 bits.
const INT32: u8 = 5;
const INT64: u8 = 6;
/// Parquet's numbers for what is written: no compression, plain values, levels in runs.
const UNCOMPRESSED: usize = 0;
const PLAIN: usize = 0;
const RLE: usize = 3;
const REQUIRED: usize = 0;
const UTF8: usize = 0;

/// A column.
pub(super) struct FlatColumn<'a> {
    pub(super) name: &'static str,
    pub(super) values: FlatValues<'a>,
}

/// Its values.
pub(super) enum FlatValues<'a> {
    Int32(Vec<i32>),
    Int64(Vec<i64>),
    Float(Vec<f32>),
    Text(Vec<&'a str>),
}

impl FlatValues<'_> {
    /// Parquet's number of their type.
    fn physical(&self) -> usize {
        match self {
            Self::Int32(_) => 1,
            Self::Int64(_) => 2,
            Self::Float(_) => 4,
            Self::Text(_) => 6,
        }
    }

    /// Some of them, one after the other.
    fn plain(&self, from: usize, until: usize) -> Vec<u8> {
        match self {
            Self::Int32(values) => values[from..until]
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect(),
            Self::Int64(values) => values[from..until]
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect(),
            Self::Float(values) => values[from..until]
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect(),
            Self::Text(values) => {
                let mut bytes = Vec::new();
                for text in &values[from..until] {
                    bytes.extend((text.len() as u32).to_le_bytes());
                    bytes.extend(text.as_bytes());
                }
                bytes
            }
        }
    }
}

/// The bytes of a file with these columns, all of them as long, and what else it says by name.
pub(super) fn write_flat(
    columns: &[FlatColumn<'_>],
    rows: usize,
    said: &[(&str, &str)],
) -> Vec<u8> {
    // Numbers of fields are those of parquet.thrift.
    let mut file = MAGIC.to_vec();
    let mut chunks = Vec::new();
    for column in columns {
        let begin = file.len();
        for from in (0..rows).step_by(PAGE) {
            let until = rows.min(from + PAGE);
            let values = column.values.plain(from, until);
            let mut page = Struct::default();
            // A data page. Both lengths are one, as nothing is packed.
            page.whole(1, INT32, 0);
            page.whole(2, INT32, values.len());
            page.whole(3, INT32, values.len());
            let mut head = Struct::default();
            head.whole(1, INT32, until - from);
            head.whole(2, INT32, PLAIN);
            // There are no levels, since all values are required; their encodings are named all the
            // same.
            head.whole(3, INT32, RLE);
            head.whole(4, INT32, RLE);
            page.field(5, STRUCT, &head.end());
            file.extend(page.end());
            file.extend(values);
        }
        let bytes = file.len() - begin;
        let mut metadata = Struct::default();
        metadata.whole(1, INT32, column.values.physical());
        metadata.field(2, LIST, &list(INT32, &[whole(PLAIN)]));
        metadata.field(3, LIST, &list(BINARY, &[text(column.name)]));
        metadata.whole(4, INT32, UNCOMPRESSED);
        metadata.whole(5, INT64, rows);
        metadata.whole(6, INT64, bytes);
        metadata.whole(7, INT64, bytes);
        // Values begin with the first page: there is no dictionary before them.
        metadata.whole(9, INT64, begin);
        let mut chunk = Struct::default();
        chunk.whole(2, INT64, begin);
        chunk.field(3, STRUCT, &metadata.end());
        chunks.push(chunk.end());
    }
    let mut group = Struct::default();
    group.field(1, LIST, &list(STRUCT, &chunks));
    group.whole(2, INT64, file.len() - MAGIC.len());
    group.whole(3, INT64, rows);
    let mut end = Struct::default();
    end.whole(1, INT32, 1);
    end.field(2, LIST, &list(STRUCT, &schema(columns)));
    end.whole(3, INT64, rows);
    end.field(4, LIST, &list(STRUCT, &[group.end()]));
    let said: Vec<Vec<u8>> = said
        .iter()
        .map(|(key, value)| {
            let mut pair = Struct::default();
            pair.field(1, BINARY, &text(key));
            pair.field(2, BINARY, &text(value));
            pair.end()
        })
        .collect();
    end.field(5, LIST, &list(STRUCT, &said));
    end.field(6, BINARY, &text("laggard"));
    let end = end.end();
    file.extend(&end);
    file.extend((end.len() as u32).to_le_bytes());
    file.extend(MAGIC);
    file
}

fn schema(columns: &[FlatColumn<'_>]) -> Vec<Vec<u8>> {
    let mut root = Struct::default();
    root.field(4, BINARY, &text("schema"));
    root.whole(5, INT32, columns.len());
    let mut elements = vec![root.end()];
    for column in columns {
        let mut element = Struct::default();
        element.whole(1, INT32, column.values.physical());
        element.whole(3, INT32, REQUIRED);
        element.field(4, BINARY, &text(column.name));
        if let FlatValues::Text(_) = column.values {
            element.whole(6, INT32, UTF8);
        }
        elements.push(element.end());
    }
    elements
}

/// A structure, field by field, in the order of their numbers.
#[derive(Default)]
struct Struct {
    bytes: Vec<u8>,
    last: u8,
}

impl Struct {
    fn field(&mut self, number: u8, kind: u8, value: &[u8]) {
        self.bytes.push((number - self.last) << 4 | kind);
        self.bytes.extend(value);
        self.last = number;
    }

    fn whole(&mut self, number: u8, kind: u8, value: usize) {
        self.field(number, kind, &whole(value));
    }

    fn end(mut self) -> Vec<u8> {
        self.bytes.push(0);
        self.bytes
    }
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// A whole number, its sign in the lowest bit: nothing that is written is below zero.
fn whole(value: usize) -> Vec<u8> {
    varint((value as u64) << 1)
}

fn text(text: &str) -> Vec<u8> {
    [varint(text.len() as u64), text.as_bytes().to_vec()].concat()
}

fn list(kind: u8, elements: &[Vec<u8>]) -> Vec<u8> {
    // Up to 14 elements their number stands in the first byte.
    let mut bytes = match u8::try_from(elements.len()) {
        Ok(few @ ..15) => vec![few << 4 | kind],
        _ => [vec![0xf0 | kind], varint(elements.len() as u64)].concat(),
    };
    bytes.extend(elements.iter().flatten());
    bytes
}
