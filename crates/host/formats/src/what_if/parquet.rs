//! Flat Parquet files: single values in columns, plain or by dictionary.
//!
//! A reader of our own, because the `parquet` crate panics on some damaged pages and spends
//! hours on others. Source: the Parquet format, version 2, data pages of version 1.

use std::borrow::Cow;
use std::io::Read;

use super::read::Value;
use super::thrift::{BINARY, Cursor, INTEGER, LIST, STRUCT, ThriftError};

/// What a file begins and ends with.
pub(crate) const MAGIC: &[u8] = b"PAR1";
/// How much larger than itself a page may say it is. Snappy's densest copy is 64 bytes in 3.
const MAX_RATIO: usize = 64;

/// Values and bytes of a page; writers make pages of about a megabyte.
const MAX_PAGE: usize = 1 << 26;

/// What a file holds.
#[derive(Clone, Debug, Default)]
pub(super) struct Contents<'a> {
    bytes: &'a [u8],
    /// Columns of single values, and whether their cells may be empty.
    columns: Vec<(&'a [u8], bool)>,
    groups: Vec<Vec<Chunk<'a>>>,
}

#[derive(Clone, Debug, Default)]
struct Chunk<'a> {
    path: Vec<&'a [u8]>,
    physical: i64,
    codec: i64,
    values: u64,
    data_at: usize,
    dictionary_at: Option<usize>,
}

struct DataPage<'a> {
    is_dictionary: bool,
    values: usize,
    encoding: i64,
    bytes: Cow<'a, [u8]>,
}

/// Why a column cannot be read: it is damaged, or what took its values refused one.
pub(super) enum Stopped<E> {
    Damaged(ThriftError),
    Missing,
    Refused(E),
}

impl<E> From<ThriftError> for Stopped<E> {
    fn from(refused: ThriftError) -> Self {
        Self::Damaged(refused)
    }
}

impl<'a> Contents<'a> {
    /// Reads the end of a file, which says what is in it.
    pub(super) fn new(bytes: &'a [u8]) -> Result<Self, ThriftError> {
        let rest = bytes
            .strip_suffix(MAGIC)
            .ok_or("it does not end like a Parquet file")?;
        let (rest, length) = rest.split_last_chunk().ok_or("it is cut off")?;
        let length = u32::from_le_bytes(*length) as usize;
        let begin = rest.len().checked_sub(length).ok_or("it is cut off")?;
        let mut contents = Self {
            bytes,
            ..Self::default()
        };
        let mut elements = Vec::new();
        Cursor::new(&rest[begin..]).fields(|cursor, number, kind| match (number, kind) {
            (2, LIST) => {
                elements = cursor.elements(STRUCT, element)?;
                Ok(true)
            }
            (4, LIST) => {
                contents.groups = cursor.elements(STRUCT, group)?;
                Ok(true)
            }
            _ => Ok(false),
        })?;
        // The schema is a tree, written parent before children. Only leaves beside the root are
        // columns here; `inside` counts what is still to come of a nested one.
        let mut inside = 0u64;
        for (name, repetition, children) in elements.into_iter().skip(1) {
            if inside > 0 {
                inside = (inside - 1).saturating_add(children);
            } else {
                inside = children;
                // Repeated ones, 2, have any number of values a row.
                if children == 0 && repetition < 2 {
                    contents.columns.push((name, repetition == 1));
                }
            }
        }
        Ok(contents)
    }

    /// Row groups.
    pub(super) fn groups(&self) -> usize {
        self.groups.len()
    }

    /// Names of the columns.
    pub(super) fn names(&self) -> Vec<String> {
        self.columns
            .iter()
            .map(|(name, _)| String::from_utf8_lossy(name).into_owned())
            .collect()
    }

    /// Hands out the values of a column of a group in order.
    pub(super) fn values<E>(
        &self,
        group: usize,
        name: &str,
        take: &mut dyn FnMut(Value<'_>) -> Result<(), E>,
    ) -> Result<(), Stopped<E>> {
        let name = name.as_bytes();
        let column = self.columns.iter().find(|(known, _)| *known == name);
        let chunk = self.groups[group].iter().find(|chunk| chunk.path == [name]);
        let (Some((_, optional)), Some(chunk)) = (column, chunk) else {
            return Err(Stopped::Missing);
        };
        let begin = chunk
            .dictionary_at
            .unwrap_or(chunk.data_at)
            .min(chunk.data_at);
        let mut cursor = Cursor::new(self.bytes.get(begin..).ok_or("it is cut off")?);
        let mut next = (chunk.values > 0)
            .then(|| page(&mut cursor, chunk.codec))
            .transpose()?;
        let first = next.take_if(|page| page.is_dictionary);
        let mut dictionary = Vec::new();
        if let Some(page) = &first {
            plain(chunk.physical, &page.bytes, page.values, &mut |value| {
                dictionary.push(value);
                Ok::<_, Stopped<E>>(())
            })?;
        }
        let mut left = chunk.values;
        while left > 0 {
            let page = match next.take() {
                Some(page) => page,
                None => page(&mut cursor, chunk.codec)?,
            };
            if page.is_dictionary {
                return Err("it has two dictionaries".into());
            }
            // A page without values takes the bytes of its header: no file has them without end.
            left = left.saturating_sub(page.values as u64);
            let mut bytes = page.bytes.as_ref();
            // Before the values stand bits that say which cells have one.
            if *optional {
                let mut cursor = Cursor::new(bytes);
                let length = little(cursor.take(4)?);
                let levels = cursor.take(length as usize)?;
                bytes = cursor.rest();
                // One bit: a column beside the root has a value in a row, or none.
                hybrid(levels, 1, page.values, &mut |level| {
                    if level == 1 {
                        Ok(())
                    } else {
                        Err("it has empty cells".into())
                    }
                })
                .map_err(|stopped: Stopped<E>| stopped)?;
            }
            match page.encoding {
                0 => plain(chunk.physical, bytes, page.values, &mut |value| {
                    take(value).map_err(Stopped::Refused)
                })?,
                // Two names of one encoding; the first is that of older writers.
                2 | 8 => {
                    let (width, bytes) = bytes.split_first().ok_or("a page is empty")?;
                    hybrid(bytes, u32::from(*width), page.values, &mut |at| {
                        let value = dictionary
                            .get(at as usize)
                            .ok_or("a value is not in the dictionary")?;
                        take(*value).map_err(Stopped::Refused)
                    })?;
                }
                _ => {
                    return Err("its encoding is neither PLAIN nor RLE_DICTIONARY".into());
                }
            }
        }
        Ok(())
    }
}

fn size(cursor: &mut Cursor<'_>) -> Result<usize, ThriftError> {
    usize::try_from(cursor.integer()?).map_err(|_negative| "a size is negative")
}

/// Name, repetition and number of children of an element of the schema.
fn element<'a>(cursor: &mut Cursor<'a>) -> Result<(&'a [u8], i64, u64), ThriftError> {
    let mut found = (&[][..], 0, 0);
    cursor.fields(|cursor, number, kind| {
        match (number, kind) {
            (3, 4..=INTEGER) => found.1 = cursor.integer()?,
            (4, BINARY) => found.0 = cursor.binary()?,
            (5, 4..=INTEGER) => found.2 = size(cursor)? as u64,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(found)
}

fn group<'a>(cursor: &mut Cursor<'a>) -> Result<Vec<Chunk<'a>>, ThriftError> {
    let mut chunks = Vec::new();
    cursor.fields(|cursor, number, kind| {
        if (number, kind) != (1, LIST) {
            return Ok(false);
        }
        chunks = cursor.elements(STRUCT, chunk)?;
        Ok(true)
    })?;
    Ok(chunks)
}

fn chunk<'a>(cursor: &mut Cursor<'a>) -> Result<Chunk<'a>, ThriftError> {
    let mut chunk = Chunk::default();
    cursor.fields(|cursor, number, kind| {
        if (number, kind) != (3, STRUCT) {
            return Ok(false);
        }
        metadata(cursor, &mut chunk)?;
        Ok(true)
    })?;
    Ok(chunk)
}

fn metadata<'a>(cursor: &mut Cursor<'a>, chunk: &mut Chunk<'a>) -> Result<(), ThriftError> {
    cursor.fields(|cursor, number, kind| {
        match (number, kind) {
            (1, 4..=INTEGER) => chunk.physical = cursor.integer()?,
            (3, LIST) => {
                chunk.path = cursor.elements(BINARY, Cursor::binary)?;
            }
            (4, 4..=INTEGER) => chunk.codec = cursor.integer()?,
            (5, 4..=INTEGER) => chunk.values = size(cursor)? as u64,
            (9, 4..=INTEGER) => chunk.data_at = size(cursor)?,
            (11, 4..=INTEGER) => chunk.dictionary_at = Some(size(cursor)?),
            _ => return Ok(false),
        }
        Ok(true)
    })
}

fn page<'a>(cursor: &mut Cursor<'a>, codec: i64) -> Result<DataPage<'a>, ThriftError> {
    let (mut kind_of_page, mut unpacked, mut packed) = (-1, 0, 0);
    let (mut values, mut encoding) = (0, -1);
    cursor.fields(|cursor, number, kind| {
        match (number, kind) {
            (1, 4..=INTEGER) => kind_of_page = cursor.integer()?,
            (2, 4..=INTEGER) => unpacked = size(cursor)?,
            (3, 4..=INTEGER) => packed = size(cursor)?,
            // Headers of data pages and of dictionaries begin with the same two fields.
            (5 | 7, STRUCT) => cursor.fields(|cursor, number, kind| {
                match (number, kind) {
                    (1, 4..=INTEGER) => values = size(cursor)?,
                    (2, 4..=INTEGER) => encoding = cursor.integer()?,
                    _ => return Ok(false),
                }
                Ok(true)
            })?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    if values > MAX_PAGE || unpacked > MAX_PAGE {
        return Err("a page is larger than the limit");
    }
    match kind_of_page {
        0 | 2 => {
            let bytes = unpack(cursor.take(packed)?, unpacked, codec)?;
            Ok(DataPage {
                is_dictionary: kind_of_page == 2,
                values,
                encoding,
                bytes,
            })
        }
        3 => Err("its data pages are of version 2; write version 1"),
        _ => Err("the kind of a page is unknown"),
    }
}

fn unpack(packed: &[u8], length: usize, codec: i64) -> Result<Cow<'_, [u8]>, ThriftError> {
    let unpacked = match codec {
        0 => return Ok(Cow::Borrowed(packed)),
        1 => {
            // The length stands at its beginning, and memory is taken for all of it.
            let said = snap::raw::decompress_len(packed).unwrap_or(usize::MAX);
            if said > packed.len().saturating_mul(MAX_RATIO) {
                return Err("a page claims an impossible size");
            }
            snap::raw::Decoder::new()
                .decompress_vec(packed)
                .map_err(|_bad| BAD_PAGE)?
        }
        2 => read(flate2::read::MultiGzDecoder::new(packed), length)?,
        6 => read(
            zstd::stream::read::Decoder::new(packed).map_err(|_bad| BAD_PAGE)?,
            length,
        )?,
        _ => return Err("its compression is not Snappy, gzip or zstd"),
    };
    Ok(Cow::Owned(unpacked))
}

const BAD_PAGE: ThriftError = "a page cannot be unpacked";

fn read(unpacked: impl Read, length: usize) -> Result<Vec<u8>, ThriftError> {
    let mut bytes = Vec::new();
    // No further than the page says it is, so that a few bytes cannot unpack to many.
    unpacked
        .take(length as u64)
        .read_to_end(&mut bytes)
        .map_err(|_bad| BAD_PAGE)?;
    Ok(bytes)
}

/// Up to eight bytes, the lowest first.
fn little(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .rev()
        .fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// Values one after the other.
fn plain<'a, E>(
    physical: i64,
    bytes: &'a [u8],
    count: usize,
    take: &mut dyn FnMut(Value<'a>) -> Result<(), Stopped<E>>,
) -> Result<(), Stopped<E>> {
    let mut cursor = Cursor::new(bytes);
    for _ in 0..count {
        // By Parquet's numbers: INT32, INT64, FLOAT, DOUBLE, BYTE_ARRAY.
        take(match physical {
            1 => Value::Whole(i64::from((little(cursor.take(4)?) as u32).cast_signed())),
            2 => Value::Whole(little(cursor.take(8)?).cast_signed()),
            4 => Value::Float(f64::from(f32::from_bits(little(cursor.take(4)?) as u32))),
            5 => Value::Float(f64::from_bits(little(cursor.take(8)?))),
            6 => {
                let length = little(cursor.take(4)?) as usize;
                Value::Text(cursor.take(length)?)
            }
            _ => return Err("its type is not whole number, float or text".into()),
        })?;
    }
    Ok(())
}

/// Numbers of `width` bits: runs of one number, and groups of eight packed.
fn hybrid<E>(
    bytes: &[u8],
    width: u32,
    count: usize,
    take: &mut dyn FnMut(u64) -> Result<(), Stopped<E>>,
) -> Result<(), Stopped<E>> {
    // The format has no wider ones, and the shifts below rely on it.
    if width > 32 {
        return Err("a number is wider than 32 bits".into());
    }
    let mut cursor = Cursor::new(bytes);
    let mut left = count as u64;
    while left > 0 {
        let head = cursor.varint()?;
        // The lowest bit tells a run from packed groups.
        if head & 1 == 0 {
            let run = (head >> 1).min(left);
            let value = little(cursor.take(width.div_ceil(8) as usize)?);
            (0..run).try_for_each(|_| take(value))?;
            left -= run;
            continue;
        }
        let groups = head >> 1;
        let wanted = groups.saturating_mul(8).min(left);
        let length = wanted.saturating_mul(u64::from(width)).div_ceil(8);
        let packed = cursor
            .rest()
            .get(..length as usize)
            .ok_or("a page is cut off")?;
        let mut at = packed.iter();
        let (mut buffer, mut bits) = (0u64, 0);
        for _ in 0..wanted {
            while bits < width {
                buffer |= u64::from(at.next().copied().unwrap_or(0)) << bits;
                bits += 8;
            }
            take(buffer & ((1 << width) - 1))?;
            buffer >>= width;
            bits -= width;
        }
        left -= wanted;
        // The last group is filled up to eight, beyond what is wanted; that part may be cut off.
        let whole = groups.saturating_mul(u64::from(width));
        cursor.take((whole as usize).min(cursor.rest().len()))?;
    }
    Ok(())
}
