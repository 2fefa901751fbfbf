use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use liblzma::stream::{CONCATENATED, Stream};

use crate::FormatError;

/// Memory an xz file may ask for to be unpacked. `xz -9` asks for 65 MiB, the format allows
/// 4 GiB; zstd has a limit of its own, 128 MiB.
const XZ_MEMORY_BYTES: u64 = 256 << 20;

/// How much of a recording is read at most.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes after unpacking.
    pub unpacked_bytes: u64,
}

impl Default for Limits {
    /// 16 GiB: more than any recording of stages, less than what fills a disk.
    fn default() -> Self {
        Self {
            unpacked_bytes: 16 << 30,
        }
    }
}

/// A reader that fails, rather than ends, once it has handed out its limit.
pub(crate) struct Limited<R> {
    inner: R,
    left: u64,
}

pub(crate) const OVER_LIMIT: &str = "recording is over the size limit";

impl<R: Read> Read for Limited<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 && !buffer.is_empty() {
            return Err(io::Error::other(OVER_LIMIT));
        }
        let most = usize::try_from(self.left)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        let read = self.inner.read(&mut buffer[..most])?;
        self.left -= read as u64;
        Ok(read)
    }
}

/// A reader that counts what it hands out.
struct CountingReader<'a, R> {
    inner: R,
    read: &'a AtomicU64,
}

impl<R: Read> Read for CountingReader<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.read.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

/// Opens a file and unpacks it while it is read, whatever its name says. Counts the bytes it has
/// read of the file itself.
pub(crate) fn open<'a>(
    path: &Path,
    limits: Limits,
    read: &'a AtomicU64,
) -> Result<impl BufRead + 'a, FormatError> {
    File::open(path)
        .and_then(|inner| {
            // Counted below the unpacking: progress is shown in bytes of the file.
            let file = CountingReader { inner, read };
            unpack(BufReader::with_capacity(1 << 18, file), limits)
        })
        .map_err(|source| FormatError::Io {
            path: path.to_owned(),
            source,
        })
}

/// The same for bytes in memory.
pub(crate) fn open_bytes(bytes: &[u8], limits: Limits) -> io::Result<impl BufRead> {
    unpack(Cursor::new(bytes), limits)
}

fn unpack<'a>(mut packed: impl BufRead + 'a, limits: Limits) -> io::Result<impl BufRead + 'a> {
    let start = packed.fill_buf()?;
    let inner: Box<dyn Read + 'a> = if start.starts_with(&[0x1f, 0x8b]) {
        // Of all members: files that were packed apart may be joined, and the first would pass for
        // all.
        Box::new(flate2::bufread::MultiGzDecoder::new(packed))
    } else if start.starts_with(b"\xfd7zXZ\0") {
        let stream = Stream::new_stream_decoder(XZ_MEMORY_BYTES, CONCATENATED)?;
        Box::new(liblzma::bufread::XzDecoder::new_stream(packed, stream))
    } else if start.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        Box::new(zstd::stream::read::Decoder::with_buffer(packed)?)
    } else {
        Box::new(packed)
    };
    let limited = Limited {
        inner,
        left: limits.unpacked_bytes,
    };
    // Formats are known by keys in the first buffer, up to 64 KiB from its beginning.
    Ok(BufReader::with_capacity(1 << 18, limited))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_asks_for_gigabytes_to_be_unpacked_is_refused() {
        // The headers of an xz file with a dictionary of 4 GiB.
        let header = b"\xfd7zXZ\0\0\x04\xe6\xd6\xb4\x46\
            \x02\0\x21\x01\x28\0\0\0\xe6\xa0\x11\xb3";
        let mut reader = open_bytes(header, Limits::default()).unwrap();
        let refused = reader.fill_buf().unwrap_err();
        assert_eq!(refused.to_string(), "memory limit reached");
    }
}
