//! Profile windows that somebody asks for by hand: a file in the job's directory, answered by
//! another.

use std::path::Path;
use std::{fs, io};

use model::Verdict;
use narrate::who;
use ring::RingDirectory;
use serde::{Deserialize, Serialize};

const ASKED: &str = "profile.asked";
const ANSWER: &str = "profile.answer";

/// What somebody wants to have profiled.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProfileRequest {
    /// The ranks; empty for those the agent would choose.
    pub ranks: Vec<u32>,
    /// How long; as the settings have it if nothing is said.
    pub seconds: Option<f64>,
}

impl ProfileRequest {
    /// Asks the agent of a job.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn ask(&self, job: &RingDirectory) -> io::Result<()> {
        // An answer to somebody else's question would be taken for ours.
        drop(fs::remove_file(job.path().join(ANSWER)));
        write(job.path(), ASKED, &serde_json::to_vec(self)?)
    }

    /// The agent's answer, once it is there: the verdict, or why nothing was recorded.
    ///
    /// # Errors
    /// What the operating system says, or that the answer is none.
    pub fn answer(job: &RingDirectory) -> io::Result<Option<Result<Verdict, String>>> {
        take(job.path(), ANSWER)
    }

    /// Why it cannot be done by an agent that has these ranks.
    pub(crate) fn refusal(&self, here: &[u32]) -> Option<String> {
        let mut absent: Vec<u32> = self
            .ranks
            .iter()
            .copied()
            .filter(|rank| !here.contains(rank))
            .collect();
        absent.sort_unstable();
        absent.dedup();
        let (does, runs) = match absent.as_slice() {
            [_] => ("does", "it runs"),
            _ => ("do", "they run"),
        };
        (!absent.is_empty()).then(|| {
            format!(
                "{} {does} not run on this host, which has {}: ask on the host where {runs}",
                who(&absent),
                who(here)
            )
        })
    }

    /// What is asked for, by the agent.
    pub(crate) fn take(job: &RingDirectory) -> Option<Self> {
        // What is no request is nothing to answer.
        take(job.path(), ASKED).ok().flatten()
    }

    /// Answers, by the agent.
    pub(crate) fn tell(job: &RingDirectory, answer: &Result<Verdict, String>) -> io::Result<()> {
        write(job.path(), ANSWER, &serde_json::to_vec(answer)?)
    }
}

/// Writes a file that is whole once it has its name.
fn write(folder: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    // Two commands that ask at once must not write into one file: hence the process id.
    let hidden = folder.join(format!(".{name}.{}", std::process::id()));
    fs::write(&hidden, bytes)?;
    fs::rename(hidden, folder.join(name))
}

/// Reads a file, if it is there, and removes it.
fn take<T: for<'de> Deserialize<'de>>(folder: &Path, name: &str) -> io::Result<Option<T>> {
    let path = folder.join(name);
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    // Before it is parsed: a damaged file would come back at every look.
    fs::remove_file(&path)?;
    Ok(Some(serde_json::from_slice(&bytes)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_taken_once() {
        let root = tempfile::tempdir().unwrap();
        let job = RingDirectory::create(root.path(), "job").unwrap();
        assert_eq!(ProfileRequest::take(&job), None);
        let request = ProfileRequest {
            ranks: vec![0, 3],
            seconds: Some(2.5),
        };
        request.ask(&job).unwrap();
        assert_eq!(ProfileRequest::take(&job), Some(request));
        assert_eq!(ProfileRequest::take(&job), None);
        assert_eq!(ProfileRequest::answer(&job).unwrap(), None);
        fs::write(job.path().join(ASKED), "{").unwrap();
        assert_eq!(ProfileRequest::take(&job), None);
        fs::write(job.path().join(ANSWER), "{").unwrap();
        assert!(ProfileRequest::answer(&job).is_err());
        ProfileRequest::tell(&job, &Err("why".to_owned())).unwrap();
        let reported = ProfileRequest::answer(&job).unwrap().unwrap();
        assert_eq!(reported.unwrap_err(), "why");
    }

    #[test]
    fn ranks_of_other_hosts_are_refused() {
        let of = |ranks: &[u32]| ProfileRequest {
            ranks: ranks.to_vec(),
            seconds: None,
        };
        assert_eq!(of(&[]).refusal(&[0, 1, 2, 3]), None);
        assert_eq!(of(&[1, 3]).refusal(&[0, 1, 2, 3]), None);
        assert_eq!(
            of(&[9, 1, 8, 9]).refusal(&[0, 1, 2, 3]).unwrap(),
            "ranks 8-9 do not run on this host, which has ranks 0-3: ask on the host where they run"
        );
    }
}
