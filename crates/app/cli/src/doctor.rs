use std::env;
use std::ffi::CString;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::Result;
use ring::{Identity, RingDirectory, RingWriter, default_slots};
use serde::Deserialize;

use crate::environment;
use crate::output::print;
use crate::package;

/// Bytes one rank's ring takes, header included, rounded up.
const RING_BYTES: u64 = 3 << 20;
/// Ranks a host should have room for.
const RANKS: u64 = 8;

/// Check the installation, and print a fix for each problem
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  laggard doctor
  laggard doctor --python /opt/venv/bin/python")]
pub(crate) struct DoctorArgs {
    /// Python the training runs with
    #[arg(long, value_name = "FILE")]
    python: Option<PathBuf>,
}

/// One thing that was looked at.
struct DoctorCheck {
    state: CheckState,
    text: String,
    fix: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CheckState {
    Good,
    Weak,
    Broken,
}

impl DoctorCheck {
    fn good(text: impl Into<String>) -> Self {
        Self {
            state: CheckState::Good,
            text: text.into(),
            fix: None,
        }
    }

    fn weak(text: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            state: CheckState::Weak,
            text: text.into(),
            fix: Some(fix.into()),
        }
    }

    fn broken(text: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            state: CheckState::Broken,
            text: text.into(),
            fix: Some(fix.into()),
        }
    }
}

/// How the package comes to where it is missing. The wheel is local: whatever an index has under
/// this name is not meant.
fn install() -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!(
        "pip install --force-reinstall laggard-{version}-*.whl, the wheel of this command \
         (`make install` builds it)"
    )
}

pub(crate) fn doctor(args: DoctorArgs) -> Result<ExitCode> {
    let mut findings = vec![DoctorCheck::good(format!(
        "laggard {}",
        env!("CARGO_PKG_VERSION")
    ))];
    findings.extend(switched_off());
    findings.extend(rings());
    let python = args
        .python
        .or_else(package::python_beside_us)
        .unwrap_or_else(|| PathBuf::from("python3"));
    findings.extend(interpreter(&python));
    findings.extend(stacks(&python));
    findings.push(nccl_plugin());
    findings.extend(old_nccl(&python));
    findings.extend(infiniband());
    let mut text = String::new();
    for finding in &findings {
        let mark = match finding.state {
            CheckState::Good => "ok    ",
            CheckState::Weak => "weak  ",
            CheckState::Broken => "BROKEN",
        };
        text += &format!("{mark}  {}\n", finding.text);
        if let Some(fix) = &finding.fix {
            text += &format!("        -> {fix}\n");
        }
    }
    let broken = findings
        .iter()
        .any(|finding| finding.state == CheckState::Broken);
    text += if broken {
        "\nlaggard cannot observe your training. Fix the BROKEN items above.\n"
    } else {
        "\nlaggard is ready: laggard run -- torchrun --nproc-per-node 4 train.py\n"
    };
    print(&text)?;
    Ok(ExitCode::from(u8::from(broken)))
}

fn switched_off() -> Option<DoctorCheck> {
    environment::is_off().then(|| {
        DoctorCheck::broken(
            "LAGGARD_ENABLE=0 switches everything off",
            "unset LAGGARD_ENABLE",
        )
    })
}

/// The ring directory: can rings be made, and is there room?
fn rings() -> Vec<DoctorCheck> {
    let root = environment::ring_root();
    let place = root.display();
    let elsewhere = "set LAGGARD_DIR to a folder of yours, in memory if possible";
    let job = format!("doctor-{}", std::process::id());
    let made = RingDirectory::create(&root, &job).and_then(|directory| {
        // A ring of full size: a small one fits where those of a job do not.
        let ring = RingWriter::create(&directory, &Identity::default(), default_slots());
        drop(directory.remove());
        ring
    });
    let mut findings = Vec::new();
    match made {
        Ok(_) => {
            findings.push(DoctorCheck::good(format!("rings can be made in {place}")));
        }
        Err(error) => {
            findings.push(DoctorCheck::broken(format!("no rings: {error}"), elsewhere));
            return findings;
        }
    }
    if let Some(free) = free_bytes(&root).filter(|free| *free < RANKS * RING_BYTES) {
        let text = format!(
            "{place} has {} MiB left; {RANKS} ranks take {} MiB",
            free >> 20,
            (RANKS * RING_BYTES) >> 20
        );
        findings.push(DoctorCheck::weak(text, elsewhere));
    }
    // As `laggard run` does: time enough to look at a crash.
    match ring::clean_stale(&root, Duration::from_mins(10)) {
        Ok(0) | Err(_) => {}
        Ok(removed) => {
            findings.push(DoctorCheck::good(format!(
                "removed the rings of {removed} dead jobs"
            )));
        }
    }
    findings
}

#[expect(
    unsafe_code,
    reason = "statvfs(3) has no safe face in the standard library"
)]
fn free_bytes(path: &Path) -> Option<u64> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: all-zero bytes are a valid statvfs, which the call fills in; the path is a
    // terminated string.
    let stat = unsafe {
        let mut stat: libc::statvfs = std::mem::zeroed();
        (libc::statvfs(path.as_ptr(), &raw mut stat) == 0).then_some(stat)?
    };
    // Without what is reserved for root.
    Some(stat.f_bavail * stat.f_frsize)
}

/// What a Python says of itself.
#[derive(Deserialize)]
struct PythonProbe {
    python: String,
    laggard: Option<String>,
    native: Option<String>,
    autoload: bool,
    torch: Option<String>,
    distributed: bool,
    hooks: bool,
    /// What its worker server can be asked for.
    handlers: Vec<String>,
    /// The accelerator that it would use.
    #[serde(default)]
    device: Option<String>,
}

impl PythonProbe {
    /// Whether its worker server can be asked for something.
    fn handles(&self, name: &str) -> bool {
        self.handlers.iter().any(|handler| handler == name)
    }
}

// Enabled whatever the environment says, which is a finding of its own: switched off, the package
// loads nothing. Each question has a `try` of its own, so that one answer cannot cost the others.
const PROBE: &str = r#"
import importlib.metadata as m, importlib.util as u, json, os, platform, site, sys
os.environ["LAGGARD_ENABLE"] = "1"
def version(name):
    try: return m.version(name)
    except Exception: return None
native = None
try:
    from laggard import _native
except Exception as error: native = f"{type(error).__name__}: {error}"
found = dict(python=platform.python_version(), laggard=version("laggard"), native=native,
    autoload=u.find_spec("laggard_autoload") is not None, torch=version("torch"),
    distributed=False, hooks=False, handlers=[])
try:
    import torch.distributed as d
    found["distributed"] = d.is_available()
    found["hooks"] = hasattr(d.ProcessGroup, "register_pre_hook")
    from torch._C import _distributed_c10d as c
    found["handlers"] = c._get_handler_names()
except Exception: pass
try:
    import torch
    if torch.accelerator.is_available(): found["device"] = str(torch.accelerator.current_accelerator())
except Exception: pass
print(json.dumps(found))
"#;

fn nccl_plugin() -> DoctorCheck {
    let set = environment::value(environment::NCCL_PLUGIN);
    match (set, package::nccl_plugin()) {
        // A plugin of the user wins over ours in `laggard run` too.
        (Some(theirs), Some(ours)) if theirs != *ours => DoctorCheck::weak(
            format!(
                "{} is set to {}: that plugin is used, and stuck flows inside collectives of NCCL \
                 are not detected",
                environment::NCCL_PLUGIN,
                theirs.display()
            ),
            format!("unset {}", environment::NCCL_PLUGIN),
        ),
        (_, Some(_)) => {
            DoctorCheck::good("NCCL profiler plugin: stuck flows inside collectives are detected")
        }
        (_, None) => DoctorCheck::weak(
            "no NCCL profiler plugin: stuck flows inside collectives of NCCL are not detected",
            install(),
        ),
    }
}

/// Work requests are seen where they are asked for.
fn infiniband() -> Option<DoctorCheck> {
    let cards = fs::read_dir("/sys/class/infiniband").ok()?.count();
    (cards > 0 && package::preload().is_some()).then(|| {
        DoctorCheck::good(
            "InfiniBand: `laggard run --preload` detects work requests that do not complete",
        )
    })
}

/// NCCL that came before the plugin's interface is seen by its calls.
fn old_nccl(python: &Path) -> Option<DoctorCheck> {
    let found = package::nccl_of(python.as_os_str());
    let (major, minor) = found.filter(|found| *found < package::FIRST_WITH_PLUGIN)?;
    let nccl = format!("NCCL {major}.{minor} does not support profiler plugins");
    Some(if package::preload().is_some() {
        DoctorCheck::good(format!(
            "{nccl}: `laggard run` preloads a library that records its calls"
        ))
    } else {
        DoctorCheck::weak(
            format!("{nccl}, and there is no library to preload for this machine"),
            "NCCL 2.23 or later supports the plugin",
        )
    })
}

fn interpreter(python: &Path) -> Vec<DoctorCheck> {
    let name = python.display();
    let output = Command::new(python)
        .args(["-c", PROBE])
        .env("PYTHONWARNINGS", "ignore")
        .output();
    let probe = match output {
        Err(error) => {
            let text = format!("cannot run {name}: {error}");
            return vec![DoctorCheck::broken(text, "name your Python with --python")];
        }
        // The last line: what a start of Python prints comes before it.
        Ok(output) => output
            .stdout
            .split(|byte| *byte == b'\n')
            .rfind(|line| !line.is_empty())
            .and_then(|line| serde_json::from_slice::<PythonProbe>(line).ok()),
    };
    let Some(probe) = probe else {
        let text = format!("{name} does not answer like a Python 3.9 or later");
        return vec![DoctorCheck::broken(text, "name your Python with --python")];
    };
    let mut findings = vec![DoctorCheck::good(format!(
        "Python {} at {name}",
        probe.python
    ))];
    findings.push(package_finding(&probe));
    findings.extend(torch_findings(&probe));
    findings
}

/// Whether stacks of ranks can be read: tried on a process of ours, as `laggard run` reads those
/// of its job.
fn stacks(python: &Path) -> Option<DoctorCheck> {
    const SCOPE: &str = "/proc/sys/kernel/yama/ptrace_scope";
    let mut child = Command::new(python)
        // It waits for input that never comes, so its stack stands still like that of a hung rank.
        .args(["-c", "import sys; print(flush=True); sys.stdin.read()"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .ok()?;
    // Until it has begun to run Python there is nothing to read.
    let began = child
        .stdout
        .take()
        .map(|stdout| BufReader::new(stdout).lines().next());
    let stack = began.map(|_| agent::stack_of(child.id()));
    // Waited for too: it would stay as a zombie.
    drop((child.kill(), child.wait()));
    let fix = "run laggard as the user of the job, in a container with --cap-add=SYS_PTRACE";
    Some(match stack?.unread {
        Some(why) => DoctorCheck::weak(
            format!("the stack of a hung rank cannot be read: {why}"),
            fix,
        ),
        None => match fs::read_to_string(SCOPE).unwrap_or_default().trim() {
            "" | "0" => DoctorCheck::good("stacks of ranks can be read when a job hangs"),
            scope => DoctorCheck::weak(
                format!(
                    "`laggard run` can read stacks, but `laggard agent` cannot without \
                     CAP_SYS_PTRACE: kernel.yama.ptrace_scope is {scope}"
                ),
                "sysctl kernel.yama.ptrace_scope=0, if the agent is used",
            ),
        },
    })
}

fn package_finding(probe: &PythonProbe) -> DoctorCheck {
    let ours = env!("CARGO_PKG_VERSION");
    match (&probe.laggard, &probe.native) {
        (Some(version), None) if version != ours => DoctorCheck::weak(
            format!("its package laggard is {version}, but this command is {ours}"),
            install(),
        ),
        (Some(version), None) if probe.autoload => {
            DoctorCheck::good(format!("package laggard {version} attaches by itself"))
        }
        (Some(_), None) => DoctorCheck::weak("package laggard lacks its autoload file", install()),
        (Some(version), Some(error)) => DoctorCheck::broken(
            format!("package laggard {version} cannot be loaded: {error}"),
            install(),
        ),
        (None, _) if package::site_packages().is_some() => DoctorCheck::weak(
            "this Python does not have the package laggard; `laggard run` adds its own",
            format!("so that `import laggard` works too: {}", install()),
        ),
        (None, _) => {
            DoctorCheck::broken("this Python does not have the package laggard", install())
        }
    }
}

fn torch_findings(probe: &PythonProbe) -> Vec<DoctorCheck> {
    let Some(torch) = &probe.torch else {
        return vec![DoctorCheck::broken(
            "no PyTorch in this Python",
            "pip install torch",
        )];
    };
    let mut findings = vec![DoctorCheck::good(format!("PyTorch {torch}"))];
    findings.push(if !probe.distributed {
        DoctorCheck::weak(
            "this PyTorch is built without torch.distributed: one rank only",
            "install a build with it",
        )
    } else if probe.hooks {
        DoctorCheck::good(
            "collective hooks: late ranks are named in every stage, and so is the rank that causes \
             a hang",
        )
    } else if probe.handles("fr_trace_json") {
        DoctorCheck::weak(
            "no collective hooks: arrival times are read from the Flight Recorder, a few seconds \
             late; without it (TORCH_FR_BUFFER_SIZE=0), hangs in collectives are not detected",
            "PyTorch 2.15 or later has the hooks",
        )
    } else if probe.handles("dump_nccl_trace_json") {
        DoctorCheck::weak(
            "no collective hooks: arrival times are read from the Flight Recorder, a few seconds \
             late, and only those of NCCL; hangs in collectives of other backends are not detected",
            "PyTorch 2.10 or later records the others too, and 2.15 has the hooks",
        )
    } else {
        DoctorCheck::weak(
            "no collective hooks and no Flight Recorder: late ranks are named only in stages that \
             do not synchronise, and hangs in collectives are not detected",
            "PyTorch 2.15 or later has the hooks",
        )
    });
    findings.extend(probe.device.as_ref().map(|device| {
        if std::env::var("LAGGARD_DEVICE_MARKS").is_ok_and(|set| set == "0") {
            DoctorCheck::weak(
                format!("device marks on {device} are off: a slow device is not recognised"),
                "unset LAGGARD_DEVICE_MARKS",
            )
        } else {
            DoctorCheck::good(format!(
                "device marks on {device}: they distinguish a slow device from a slow host"
            ))
        }
    }));
    findings
}
