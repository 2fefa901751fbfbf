//! Times in which nobody is alerted to incidents: maintenance.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{fs, io};

use serde::de::{self, Deserializer};
use serde::{Deserialize, Serialize};
use serde_json::Number;

use crate::store::write_whole;

/// Silences at a time; each is a decision of somebody.
const MOST: usize = 1000;
const FILE: &str = "silences.json";
/// When those are over that somebody has ended.
const ENDED_S: u64 = 0;
/// Up to here every whole number is one as JSON's readers have it.
const MOST_WHOLE: u64 = (1 << 53) - 1;

/// Nobody is alerted to incidents that begin in it. One that still goes on at its end is reported
/// then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Silence {
    /// Its name.
    #[serde(default, deserialize_with = "whole")]
    pub id: u64,
    /// The job; all if null.
    #[serde(default)]
    pub job: Option<String>,
    /// When it begins, in seconds since 1970.
    #[serde(default, deserialize_with = "whole")]
    pub from_s: u64,
    /// When it is over.
    #[serde(deserialize_with = "whole")]
    pub until_s: u64,
    /// Why, for people.
    #[serde(default)]
    pub reason: String,
}

/// A whole number, which JSON may also write as 2.0 or 2e9.
fn whole<'de, D: Deserializer<'de>>(number: D) -> Result<u64, D::Error> {
    let number = Number::deserialize(number)?;
    number
        .as_u64()
        .or_else(|| {
            let wide = number.as_f64()?;
            (wide >= 0.0 && wide.fract() == 0.0).then_some(wide as u64)
        })
        .filter(|whole| *whole <= MOST_WHOLE)
        .ok_or_else(|| de::Error::custom("not a whole number"))
}

impl Silence {
    fn covers(&self, job: &str, now_s: u64) -> bool {
        let is_now = (self.from_s..self.until_s).contains(&now_s);
        is_now && self.job.as_ref().is_none_or(|silent| silent == job)
    }
}

/// All silences that are not over.
#[derive(Debug)]
pub(crate) struct Silences {
    file: PathBuf,
    known: Mutex<Vec<Silence>>,
}

impl Silences {
    /// Takes up those an earlier collector knew.
    pub(crate) fn open(data: &Path) -> Self {
        let file = data.join(FILE);
        // A file that cannot be read is none: rather an alert too many than one too few.
        let known = fs::read(&file)
            .ok()
            .and_then(|bytes| serde_json::from_slice(&bytes).ok())
            .unwrap_or_default();
        Self {
            file,
            known: Mutex::new(known),
        }
    }

    fn known(&self) -> MutexGuard<'_, Vec<Silence>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn cover(&self, job: &str, now_s: u64) -> bool {
        self.known()
            .iter()
            .any(|silence| silence.covers(job, now_s))
    }

    /// Those that are not over, the first to end first.
    pub(crate) fn all(&self, now_s: u64) -> Vec<Silence> {
        let mut all = self.known().clone();
        all.retain(|silence| silence.until_s > now_s);
        all.sort_by_key(|silence| (silence.until_s, silence.id));
        all
    }

    /// Adds one and names it; `None` if there are too many. It counts once it is on disk.
    pub(crate) fn add(&self, silence: Silence, now_s: u64) -> io::Result<Option<Silence>> {
        let mut known = self.known();
        let mut new = known.clone();
        // Counted with those that are over: ending one of them must not end another.
        let id = new.iter().map(|silence| silence.id).max().unwrap_or(0) + 1;
        new.retain(|silence| silence.until_s > now_s);
        if new.len() >= MOST {
            return Ok(None);
        }
        let silence = Silence { id, ..silence };
        new.push(silence.clone());
        // On disk before it counts: a restart must not forget what somebody was promised.
        write_whole(&self.file, &serde_json::to_vec(&new)?)?;
        *known = new;
        Ok(Some(silence))
    }

    /// Ends one; whether there was such a one.
    pub(crate) fn end(&self, id: u64) -> io::Result<bool> {
        let mut known = self.known();
        let mut new = known.clone();
        let mut open = new.iter_mut().filter(|silence| silence.until_s > ENDED_S);
        let Some(silence) = open.find(|silence| silence.id == id) else {
            return Ok(false);
        };
        // Not removed: the next one must not be given its name.
        silence.until_s = ENDED_S;
        write_whole(&self.file, &serde_json::to_vec(&new)?)?;
        *known = new;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn silence(job: Option<&str>, from_s: u64, until_s: u64) -> Silence {
        let (job, reason) = (job.map(str::to_owned), String::new());
        Silence {
            id: 0,
            job,
            from_s,
            until_s,
            reason,
        }
    }

    #[test]
    fn whole_numbers_are_read_however_they_are_written() {
        let until = |text: &str| {
            let silence = format!("{{\"until_s\": {text}}}");
            serde_json::from_str::<Silence>(&silence)
                .ok()
                .map(|silence| silence.until_s)
        };
        assert_eq!(until("20"), Some(20));
        assert_eq!(until("20.0"), Some(20));
        assert_eq!(until("2e9"), Some(2_000_000_000));
        for wrong in ["-1", "1.5", "1e16", "9007199254740992", "\"20\"", "null"] {
            assert_eq!(until(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_silence_covers_its_job_in_its_time_and_outlives_the_collector() {
        let folder = tempfile::tempdir().unwrap();
        let silences = Silences::open(folder.path());
        let one = silences
            .add(silence(Some("a"), 10, 20), 5)
            .unwrap()
            .unwrap();
        let all = silences.add(silence(None, 30, 40), 5).unwrap().unwrap();
        assert_ne!(one.id, all.id);
        let again = Silences::open(folder.path());
        for silences in [&silences, &again] {
            let covered = |job| [9, 10, 19, 20, 30].map(|now_s| silences.cover(job, now_s));
            assert_eq!(covered("a"), [false, true, true, false, true]);
            assert_eq!(covered("b"), [false, false, false, false, true]);
            assert_eq!(silences.all(25), std::slice::from_ref(&all));
        }
        assert!(again.end(one.id).unwrap() && !again.end(one.id).unwrap());
        assert!(!again.cover("a", 15));
        assert_eq!(again.all(5), std::slice::from_ref(&all));
        assert!(again.end(all.id).unwrap());
        let next = again.add(silence(None, 50, 60), 5).unwrap().unwrap();
        assert!(
            next.id > all.id,
            "who ended a silence before may do so again"
        );
    }
}
