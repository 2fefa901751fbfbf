//! Files that one process writes and others map: made whole before they have their name.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use memmap2::{Mmap, MmapMut, MmapOptions};

use crate::RingError;

/// Makes a file of `bytes` zeros, lets `fill` write its header, and names it `path`.
///
/// The file's space is reserved at once: a memory file system that fills up later cannot
/// fault the process, and no page is looked up for the first time inside a step. Nothing of a file that could not be made is left behind.
pub(crate) fn create(
    path: &Path,
    bytes: usize,
    fill: impl FnOnce(&mut MmapMut),
) -> Result<MmapMut, RingError> {
    // Beside each other, a ring and a live table of one process must not share it.
    let hidden = path.with_added_extension("new");
    let made = map_new(&hidden, bytes).and_then(|mut map| {
        fill(&mut map);
        fs::rename(&hidden, path).map_err(io_error("rename", &hidden))?;
        Ok(map)
    });
    if made.is_err() {
        // That it may not even exist is no news.
        drop(fs::remove_file(&hidden));
    }
    made
}

fn map_new(path: &Path, bytes: usize) -> Result<MmapMut, RingError> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .map_err(io_error("create", path))?;
    reserve(&file, bytes).map_err(io_error("reserve space for", path))?;
    // SAFETY: the file is ours alone until it is renamed, and readers only read it through
    // atomics; nobody shortens it.
    unsafe { MmapOptions::new().populate().map_mut(&file) }.map_err(io_error("map", path))
}

/// Maps a file somebody else writes.
pub(crate) fn open(path: &Path) -> Result<Mmap, RingError> {
    // Without waiting: a pipe by the name of a ring would wait for its writer.
    let mut open = OpenOptions::new();
    let file = open.read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let file = file.map_err(io_error("open", path))?;
    // SAFETY: the file is mapped shared and read through atomics, except for the parts of
    // its header that never change once it has its name. Such files stand in a private
    // directory, so nobody shortens them.
    unsafe { Mmap::map(&file) }.map_err(io_error("map", path))
}

/// Maps a file of another process that both write to.
pub(crate) fn open_shared(path: &Path) -> Result<MmapMut, RingError> {
    let mut open = OpenOptions::new();
    let file = open
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path);
    let file = file.map_err(io_error("open", path))?;
    // SAFETY: all that changes in it is atomic; such files stand in a private directory, so
    // nobody shortens them.
    unsafe { MmapMut::map_mut(&file) }.map_err(io_error("map", path))
}

fn reserve(file: &File, bytes: usize) -> io::Result<()> {
    let length = libc::off_t::try_from(bytes).map_err(io::Error::other)?;
    // SAFETY: a plain system call on a descriptor that `file` keeps open.
    match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, length) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

pub(crate) fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RingError {
    let path = path.to_owned();
    move |source| RingError::Io {
        action,
        path,
        source,
    }
}
