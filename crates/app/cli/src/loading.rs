//! Loads files on all cores and shows how far it is.

use std::collections::BTreeMap;
use std::fs;
use std::io::{IsTerminal, Write, stderr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// How often the bar is drawn.
const TICK: Duration = Duration::from_millis(100);
/// Characters of the bar.
const BAR: u64 = 30;

/// Loads files, as many at a time as there are cores, and takes what they give in their order.
///
/// `load` counts the bytes it has read of a file in the counter it is given.
pub(crate) fn load_all<T: Send>(
    files: &[PathBuf],
    load: impl Fn(&Path, &AtomicU64) -> T + Sync,
    mut take: impl FnMut(&Path, T),
) {
    let total: u64 = files
        .iter()
        .filter_map(|path| fs::metadata(path).ok())
        .map(|file| file.len())
        .sum();
    let (read, next) = (AtomicU64::new(0), AtomicUsize::new(0));
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let (sender, receiver) = channel();
    thread::scope(|scope| {
        for _ in 0..cores.min(files.len()) {
            let (sender, load, read, next) = (sender.clone(), &load, &read, &next);
            scope.spawn(move || {
                loop {
                    // Relaxed: it only deals out numbers. What was loaded goes through the channel.
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(file) = files.get(at) else { return };
                    if sender.send((at, load(file, read))).is_err() {
                        return;
                    }
                }
            });
        }
        // Ours too, or the end of all others would not be heard.
        drop(sender);
        // Files end in any order. Notes and verdicts must not depend on which core was first.
        let mut waiting: BTreeMap<usize, T> = BTreeMap::new();
        let mut taken = 0;
        loop {
            match receiver.recv_timeout(TICK) {
                Ok((at, loaded)) => {
                    waiting.insert(at, loaded);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            while let Some(loaded) = waiting.remove(&taken) {
                take(&files[taken], loaded);
                taken += 1;
            }
            draw(read.load(Ordering::Relaxed), total, taken, files.len());
        }
    });
    if stderr().is_terminal() {
        // The next line of output begins where the bar was.
        drop(write!(stderr(), "\r\x1b[K"));
    }
}

/// Draws the bar, if somebody is there to see it.
fn draw(read: u64, total: u64, files_done: usize, files: usize) {
    if !stderr().is_terminal() || total == 0 {
        return;
    }
    // A file may grow while it is read.
    let done = (read.min(total) * BAR / total) as usize;
    let bar = format!("{}{}", "█".repeat(done), "░".repeat(BAR as usize - done));
    let percent = read.min(total) * 100 / total;
    drop(write!(
        stderr(),
        "\r{bar} {percent:3} %  {files_done} of {files} files "
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_files_give_is_taken_in_their_order() {
        let files: Vec<PathBuf> = (0..50).map(|at| PathBuf::from(at.to_string())).collect();
        let mut taken = Vec::new();
        let name = |path: &Path, read: &AtomicU64| {
            read.fetch_add(1, Ordering::Relaxed);
            path.display().to_string()
        };
        load_all(&files, name, |path, name| {
            taken.push(path.display().to_string() == name);
        });
        assert_eq!(taken, vec![true; 50]);
    }
}
