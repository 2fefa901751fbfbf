//! `laggard doctor`: what is looked at, what is said of it, and the exit status.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

/// A machine for the doctor: a folder for rings, and a Python that says what it is told to.
struct Patient {
    folder: TempDir,
}

impl Patient {
    /// One that has everything, but for what is changed.
    fn with(changes: &[(&str, Value)]) -> Self {
        let mut probe = json!({
            "python": "3.11.7", "laggard": env!("CARGO_PKG_VERSION"), "native": null,
            "autoload": true, "torch": "2.15.0", "distributed": true, "hooks": true,
            "handlers": ["dump_nccl_trace_json", "fr_trace_json"],
        });
        for (key, value) in changes {
            probe[*key] = value.clone();
        }
        Self::whose_python(&format!("echo '{probe}'"))
    }

    fn whose_python(says: &str) -> Self {
        let patient = Self {
            folder: tempfile::tempdir().expect("a folder"),
        };
        let python = patient.python();
        fs::create_dir_all(python.parent().expect("bin")).expect("a folder");
        fs::write(&python, format!("#!/bin/sh\n{says}\n")).expect("a file");
        fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).expect("a mode");
        patient
    }

    fn python(&self) -> PathBuf {
        self.folder.path().join("bin/python")
    }

    fn rings(&self) -> PathBuf {
        self.folder.path().join("rings")
    }

    /// The exit status, and what is said: of the folder as FOLDER, and nothing of NCCL's plugin,
    /// InfiniBand and stacks of processes, which this machine has or has not.
    fn seen(&self, python: &Path, environment: &[(&str, &str)]) -> (i32, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_laggard"));
        command.args(["doctor", "--python"]).arg(python);
        command
            .env("LAGGARD_DIR", self.rings())
            .env_remove("LAGGARD_ENABLE");
        command.env_remove("NCCL_PROFILER_PLUGIN");
        let output = command
            .envs(environment.iter().copied())
            .output()
            .expect("laggard");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        let folder = self.folder.path().to_str().expect("UTF-8");
        let mut lines = Vec::new();
        let mut skips = false;
        for line in text.replace(folder, "FOLDER").lines() {
            let is_advice = line.starts_with("        -> ");
            skips = is_advice && skips
                || line.contains("NCCL profiler plugin:")
                || line.contains("InfiniBand")
                || line.contains("of a hung rank")
                || line.contains("stacks");
            if !skips {
                lines.push(line.to_owned());
            }
        }
        (output.status.code().expect("a status"), lines.join("\n"))
    }

    fn look(&self) -> (i32, String) {
        self.seen(&self.python(), &[])
    }
}

const READY: &str = "laggard is ready: laggard run -- torchrun --nproc-per-node 4 train.py";
const NOT_SEEN: &str = "laggard cannot observe your training. Fix the BROKEN items above.";

#[test]
fn everything_in_place() {
    let (code, said) = Patient::with(&[]).look();
    let version = env!("CARGO_PKG_VERSION");
    let expected = format!(
        "ok      laggard {version}\nok      rings can be made in FOLDER/rings\nok      Python \
         3.11.7 at FOLDER/bin/python\nok      package laggard {version} attaches by \
         itself\nok      PyTorch 2.15.0\nok      collective hooks: late ranks are named in every \
         stage, and so is the rank that causes a hang\n\n{READY}"
    );
    assert_eq!((code, said), (0, expected));
}

/// What the package says of itself; the exit status, what is said, and what to do about it.
type Case<'a> = (&'a [(&'a str, Value)], i32, &'a str, &'a str);

#[test]
fn what_is_weak_works_and_what_is_broken_does_not() {
    let version = env!("CARGO_PKG_VERSION");
    let wheel = format!(
        "pip install --force-reinstall laggard-{version}-*.whl, the wheel of this command \
         (`make install` builds it)"
    );
    let newer = "PyTorch 2.15 or later has the hooks";
    let cases: [Case<'_>; 9] = [
        (
            &[("laggard", json!("0.0.1"))],
            0,
            &format!("weak    its package laggard is 0.0.1, but this command is {version}"),
            &wheel,
        ),
        (
            &[("autoload", json!(false))],
            0,
            "weak    package laggard lacks its autoload file",
            &wheel,
        ),
        (
            &[("native", json!("ImportError: wrong ELF class"))],
            1,
            &format!(
                "BROKEN  package laggard {version} cannot be loaded: ImportError: wrong ELF class"
            ),
            &wheel,
        ),
        (
            &[
                ("laggard", Value::Null),
                ("native", json!("ModuleNotFoundError")),
            ],
            1,
            "BROKEN  this Python does not have the package laggard",
            &wheel,
        ),
        (
            &[("torch", Value::Null)],
            1,
            "BROKEN  no PyTorch in this Python",
            "pip install torch",
        ),
        (
            &[("distributed", json!(false))],
            0,
            "weak    this PyTorch is built without torch.distributed: one rank only",
            "install a build with it",
        ),
        (
            &[("hooks", json!(false))],
            0,
            "weak    no collective hooks: arrival times are read from the Flight Recorder, a few \
             seconds late; without it (TORCH_FR_BUFFER_SIZE=0), hangs in collectives are not \
             detected",
            newer,
        ),
        (
            &[
                ("hooks", json!(false)),
                ("handlers", json!(["dump_nccl_trace_json"])),
            ],
            0,
            "weak    no collective hooks: arrival times are read from the Flight Recorder, a few \
             seconds late, and only those of NCCL; hangs in collectives of other backends are not \
             detected",
            "PyTorch 2.10 or later records the others too, and 2.15 has the hooks",
        ),
        (
            &[("hooks", json!(false)), ("handlers", json!([]))],
            0,
            "weak    no collective hooks and no Flight Recorder: late ranks are named only in \
             stages that do not synchronise, and hangs in collectives are not detected",
            newer,
        ),
    ];
    for (changes, code, line, fix) in cases {
        let (found, said) = Patient::with(changes).look();
        assert_eq!(found, code, "{said}");
        let line = format!("\n{line}\n        -> {fix}\n");
        assert!(said.contains(&line), "{said}");
        let end = if code == 0 { READY } else { NOT_SEEN };
        assert!(said.ends_with(&format!("\n\n{end}")), "{said}");
        let others = said
            .lines()
            .filter(|line| line.starts_with("        -> "))
            .count();
        assert_eq!(others, 1, "{said}");
    }
}

#[test]
fn a_python_that_is_none() {
    let fix = "\n        -> name your Python with --python\n";
    for says in ["exit 3", "echo 2.7", "echo '{\"python\": \"3.11.7\"}'"] {
        let (code, said) = Patient::whose_python(says).look();
        let line =
            format!("BROKEN  FOLDER/bin/python does not answer like a Python 3.9 or later{fix}");
        assert!(code == 1 && said.contains(&line), "{said}");
    }
    let patient = Patient::with(&[]);
    let (code, said) = patient.seen(&patient.folder.path().join("none"), &[]);
    assert!(
        code == 1 && said.contains("BROKEN  cannot run FOLDER/none: "),
        "{said}"
    );
    assert!(said.contains(fix), "{said}");
}

#[test]
fn what_a_python_prints_first_does_not_matter() {
    let probe = json!({
        "python": "3.9.18", "laggard": env!("CARGO_PKG_VERSION"), "native": null,
        "autoload": true, "torch": "2.9.0", "distributed": true, "hooks": false,
        "handlers": ["dump_nccl_trace_json", "fr_trace_json"],
    });
    let patient = Patient::whose_python(&format!("echo a banner; echo '{probe}'; echo"));
    let (code, said) = patient.look();
    assert!(
        code == 0 && said.contains("ok      PyTorch 2.9.0\n"),
        "{said}"
    );
}

#[test]
fn rings_that_cannot_be_made() {
    let patient = Patient::with(&[]);
    fs::write(patient.rings(), "a file").expect("a file");
    let (code, said) = patient.look();
    assert!(code == 1 && said.contains("\nBROKEN  no rings: "), "{said}");
    let fix = "-> set LAGGARD_DIR to a folder of yours, in memory if possible";
    assert!(said.contains(fix), "{said}");
    assert!(said.ends_with(NOT_SEEN), "{said}");
}

#[test]
fn what_was_tried_is_removed() {
    let patient = Patient::with(&[]);
    patient.look();
    assert_eq!(fs::read_dir(patient.rings()).expect("a folder").count(), 0);
}

#[test]
fn switched_off() {
    let patient = Patient::with(&[]);
    let (code, said) = patient.seen(&patient.python(), &[("LAGGARD_ENABLE", "0")]);
    let line =
        "\nBROKEN  LAGGARD_ENABLE=0 switches everything off\n        -> unset LAGGARD_ENABLE\n";
    assert!(code == 1 && said.contains(line), "{said}");
}

#[test]
fn nccl_that_knows_no_plugin() {
    let patient = Patient::with(&[]);
    let wheel = "lib/python3.11/site-packages/nvidia_nccl_cu12-2.20.5.dist-info";
    fs::create_dir_all(patient.folder.path().join(wheel)).expect("a folder");
    let (code, said) = patient.look();
    assert!(
        code == 0 && said.contains("NCCL 2.20 does not support profiler plugins"),
        "{said}"
    );
}
