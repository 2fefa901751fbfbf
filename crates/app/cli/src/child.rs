//! The wrapped command: started, sent on what we are sent, and followed to its end.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitCode, ExitStatus};

use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::origin::WithOrigin;
use signal_hook::low_level::siginfo::{Cause, Sent};

/// Signals that are passed on if a process sent them.
const PASSED_ON: [i32; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];

/// The running command.
#[derive(Debug)]
pub(crate) struct WrappedCommand {
    child: Child,
    signals: SignalsInfo<WithOrigin>,
    /// Signals that were ignored when we were started, as under `nohup`: the command ignores them, too.
    ignored: Vec<i32>,
    /// Whether somebody has asked the command to end.
    pub(crate) asked_to_end: bool,
}

/// Why a command could not be started.
#[derive(Debug)]
pub(crate) struct NotStarted {
    program: OsString,
    source: io::Error,
}

impl NotStarted {
    /// The exit status a shell would give.
    pub(crate) fn exit_code(&self) -> ExitCode {
        let found = self.source.kind() != io::ErrorKind::NotFound;
        ExitCode::from(if found { 126 } else { 127 })
    }

    pub(crate) fn text(&self) -> String {
        format!(
            "laggard: cannot run {}: {}",
            self.program.display(),
            self.source
        )
    }
}

pub(crate) fn command(argv: &[OsString]) -> Command {
    let (program, arguments) = argv
        .split_first()
        .map_or((None, argv), |(p, a)| (Some(p), a));
    let mut command = Command::new(program.cloned().unwrap_or_default());
    command.args(arguments);
    command
}

/// Replaces this process by the command. Returns only if that fails.
pub(crate) fn replace(mut command: Command) -> NotStarted {
    let source = command.exec();
    NotStarted {
        program: command.get_program().to_owned(),
        source,
    }
}

impl WrappedCommand {
    /// Starts the command with our own standard streams.
    pub(crate) fn start(mut command: Command) -> Result<Self, NotStarted> {
        let ignored: Vec<i32> = PASSED_ON.into_iter().filter(|it| is_ignored(*it)).collect();
        leave_ignored(&mut command, ignored.clone());
        // Before the command starts: a signal must not fall between the two.
        let signals = SignalsInfo::<WithOrigin>::new(PASSED_ON).map_err(|source| NotStarted {
            program: OsString::new(),
            source,
        })?;
        let child = command.spawn().map_err(|source| NotStarted {
            program: command.get_program().to_owned(),
            source,
        })?;
        Ok(Self {
            child,
            signals,
            ignored,
            asked_to_end: false,
        })
    }

    /// Passes on signals and says whether the command has ended.
    ///
    /// What the terminal sends goes to the whole foreground group, so the command already
    /// has it; only what a process sent to us alone is passed on.
    pub(crate) fn poll(&mut self) -> io::Result<Option<ExitStatus>> {
        // Before `try_wait`: once that has reaped the child, its pid may be that of another
        // process.
        for origin in self.signals.pending() {
            // Slurm and Lightning use these two signals for other things than the end of a job.
            let is_ignored = self.ignored.contains(&origin.signal);
            self.asked_to_end |= ![SIGUSR1, SIGUSR2].contains(&origin.signal) && !is_ignored;
            let from_process = matches!(
                origin.cause,
                Cause::Sent(Sent::User | Sent::TKill | Sent::Queue)
            );
            if from_process && let Ok(pid) = libc::pid_t::try_from(self.child.id()) {
                send(pid, origin.signal);
            }
        }
        self.child.try_wait()
    }

    /// Waits for the end without watching.
    pub(crate) fn wait(&mut self) -> io::Result<ExitStatus> {
        loop {
            if let Some(status) = self.poll()? {
                return Ok(status);
            }
            // Not a wait that blocks: signals are passed on meanwhile.
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }
}

/// Whether this process ignores a signal.
#[expect(unsafe_code, reason = "sigaction(2) has no safe face")]
fn is_ignored(signal: i32) -> bool {
    // SAFETY: zeros are an action, which the call only fills.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &raw mut action) == 0
            && action.sa_sigaction == libc::SIG_IGN
    }
}

/// Lets the command ignore what we were started to ignore, of which our handlers would take it. The kernel keeps how
/// the command ends until we ask for it, also under a launcher that ignores the ends of its children.
#[expect(unsafe_code, reason = "signal(2) has no safe face")]
fn leave_ignored(command: &mut Command, mut ignored: Vec<i32>) {
    if is_ignored(libc::SIGCHLD) {
        ignored.push(libc::SIGCHLD);
        // SAFETY: a plain system call.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    }
    if ignored.is_empty() {
        return;
    }
    // SAFETY: plain system calls, which may be made between fork and exec.
    unsafe {
        command.pre_exec(move || {
            for signal in &ignored {
                libc::signal(*signal, libc::SIG_IGN);
            }
            Ok(())
        });
    }
}

#[expect(
    unsafe_code,
    reason = "kill(2) has no safe face in the standard library"
)]
fn send(pid: libc::pid_t, signal: i32) {
    // SAFETY: a plain system call; the child is not reaped before `poll` returns its status,
    // so the pid is still its own.
    unsafe { libc::kill(pid, signal) };
}

/// Ends this process the way the command ended: with its exit code, or by its signal.
#[expect(unsafe_code, reason = "dying by a signal has no safe face")]
pub(crate) fn end_like(status: ExitStatus) -> ExitCode {
    if let Some(signal) = status.signal() {
        // SAFETY: plain system calls. The core was the command's to dump, not ours.
        unsafe {
            let none = libc::rlimit {
                rlim_cur: 0,
                rlim_max: 0,
            };
            libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
        // Reached only for signals that do not end a process.
        return ExitCode::from(u8::try_from(128 + signal).unwrap_or(u8::MAX));
    }
    ExitCode::from(
        status
            .code()
            // An exit status has eight bits on Linux, so neither default is used.
            .and_then(|code| u8::try_from(code).ok())
            .unwrap_or(u8::MAX),
    )
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_command_that_does_not_start_ends_as_in_a_shell() {
        let folder = tempfile::tempdir().expect("a folder");
        let (missing, unfit) = (folder.path().join("missing"), folder.path().join("unfit"));
        fs::write(&unfit, "nothing that runs").expect("a file");
        for (program, code) in [(missing, 127), (unfit, 126)] {
            let source = Command::new(&program).spawn().expect_err("no command");
            let program = program.into_os_string();
            let not_started = NotStarted { program, source };
            assert_eq!(not_started.exit_code(), ExitCode::from(code));
        }
    }
}
