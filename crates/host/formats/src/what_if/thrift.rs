//! Structures in Thrift's compact protocol: a cursor that reads what it is asked for and passes
//! over the rest. Each step forward takes at least one byte, so no bytes keep it long.

/// Structures within structures that are passed over.
const MAX_DEPTH: u32 = 16;

/// Why bytes are no structure.
pub(super) type ThriftError = &'static str;

/// Types of fields and elements.
pub(super) const TRUE: u8 = 1;
const FALSE: u8 = 2;
const BYTE: u8 = 3;
// With 4 and 5, those of 16 and 32 bits: all three are written alike.
pub(super) const INTEGER: u8 = 6;
const DOUBLE: u8 = 7;
pub(super) const BINARY: u8 = 8;
pub(super) const LIST: u8 = 9;
const SET: u8 = 10;
const MAP: u8 = 11;
pub(super) const STRUCT: u8 = 12;

#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub(super) fn new(rest: &'a [u8]) -> Self {
        Self { rest }
    }

    /// What was not read.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(super) fn take(&mut self, length: usize) -> Result<&'a [u8], ThriftError> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or("it is cut off")?;
        self.rest = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, ThriftError> {
        Ok(self.take(1)?[0])
    }

    /// A number of seven bits a byte, the last byte below 128.
    pub(super) fn varint(&mut self) -> Result<u64, ThriftError> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err("a number is longer than 64 bits")
    }

    /// A number with its sign in the lowest bit.
    pub(super) fn integer(&mut self) -> Result<i64, ThriftError> {
        let value = self.varint()?;
        Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }

    pub(super) fn binary(&mut self) -> Result<&'a [u8], ThriftError> {
        let length = self.varint()?;
        self.take(usize::try_from(length).unwrap_or(usize::MAX))
    }

    /// Type and number of the elements of a list.
    fn list(&mut self) -> Result<(u8, usize), ThriftError> {
        let head = self.byte()?;
        let count = match head >> 4 {
            15 => usize::try_from(self.varint()?).unwrap_or(usize::MAX),
            count => usize::from(count),
        };
        Ok((head & 15, count))
    }

    /// Reads the elements of a list of a type.
    pub(super) fn elements<T>(
        &mut self,
        kind: u8,
        mut read: impl FnMut(&mut Self) -> Result<T, ThriftError>,
    ) -> Result<Vec<T>, ThriftError> {
        let (found, count) = self.list()?;
        if found != kind {
            return Err("a list has elements of another type");
        }
        // Without room for all of them beforehand: a few bytes may claim any number.
        (0..count).map(|_| read(self)).collect()
    }

    /// Reads a structure field by field: `read` is given number and type, and says whether it
    /// has read the field.
    pub(super) fn fields(
        &mut self,
        mut read: impl FnMut(&mut Self, i64, u8) -> Result<bool, ThriftError>,
    ) -> Result<(), ThriftError> {
        let mut number = 0i64;
        loop {
            let head = self.byte()?;
            if head == 0 {
                return Ok(());
            }
            // Four bits of how far it is from the last number; zero if that is too far, and the
            // number follows.
            number = match head >> 4 {
                0 => self.integer()?,
                more => number.saturating_add(i64::from(more)),
            };
            let kind = head & 15;
            if !read(self, number, kind)? {
                self.skip(kind, MAX_DEPTH)?;
            }
        }
    }

    fn skip(&mut self, kind: u8, depth: u32) -> Result<(), ThriftError> {
        let depth = depth
            .checked_sub(1)
            .ok_or("structures are nested too deep")?;
        match kind {
            TRUE | FALSE => Ok(()),
            BYTE => self.take(1).map(drop),
            4..=INTEGER => self.varint().map(drop),
            DOUBLE => self.take(8).map(drop),
            BINARY => self.binary().map(drop),
            LIST | SET => {
                let (kind, count) = self.list()?;
                (0..count).try_for_each(|_| self.skip_element(kind, depth))
            }
            MAP => {
                let count = self.varint()?;
                // An empty map is its count alone.
                let kinds = if count == 0 { 0 } else { self.byte()? };
                (0..count).try_for_each(|_| {
                    self.skip_element(kinds >> 4, depth)?;
                    self.skip_element(kinds & 15, depth)
                })
            }
            STRUCT => loop {
                let head = self.byte()?;
                if head == 0 {
                    return Ok(());
                }
                if head >> 4 == 0 {
                    self.integer()?;
                }
                self.skip(head & 15, depth)?;
            },
            _ => Err("a type is unknown"),
        }
    }

    /// Truth values are a byte in lists and in the type of fields.
    fn skip_element(&mut self, kind: u8, depth: u32) -> Result<(), ThriftError> {
        if kind <= FALSE {
            self.take(1).map(drop)
        } else {
            self.skip(kind, depth)
        }
    }
}
