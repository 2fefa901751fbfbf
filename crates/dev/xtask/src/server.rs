//! A real `laggard serve` to measure.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

/// `laggard serve`, which ends with this.
pub(crate) struct ServeProcess {
    child: Child,
    /// Where it answers.
    pub(crate) url: String,
}

impl Drop for ServeProcess {
    fn drop(&mut self) {
        // Several servers follow one another in one run. Without the wait, each would stay a
        // zombie.
        if self.child.kill().is_ok() {
            self.child.wait().ok();
        }
    }
}

impl ServeProcess {
    /// Starts it on an address of its own.
    pub(crate) fn start(mut laggard: Command, options: &[&str]) -> Result<Self> {
        laggard
            // Port 0 lets the kernel choose a free one; the first line names it.
            .args(["serve", "--listen", "127.0.0.1:0"])
            .args(options);
        let mut child = laggard.stderr(Stdio::piped()).spawn()?;
        let mut lines = BufReader::new(child.stderr.take().context("piped")?).lines();
        let line = lines.next().context("a line")??;
        let rest = line
            .strip_prefix("laggard: serving ")
            .with_context(|| line.clone())?;
        let url = rest.split(',').next().unwrap_or_default().to_owned();
        // The rest is read, lest the server has to wait for a reader.
        std::thread::spawn(move || lines.for_each(drop));
        Ok(Self { child, url })
    }

    /// What stands at a place of its API.
    pub(crate) fn get(&self, place: &str) -> Result<String> {
        let mut answer = ureq::get(format!("{}/api/v1/{place}", self.url)).call()?;
        Ok(answer
            .body_mut()
            .with_config()
            // ureq stops at 10 MB by default, which the verdict of a large job exceeds.
            .limit(1 << 30)
            .read_to_string()?)
    }

    /// Its process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }
}
