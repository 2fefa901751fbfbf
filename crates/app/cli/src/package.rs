//! Where the Python package is, and how a job gets it that does not have it installed.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

const AUTOLOAD: &str = "laggard_autoload.py";
/// Installed with the wheel: its presence means jobs of that environment attach themselves.
const GATE: &str = "laggard_autoload.pth";

/// The `site-packages` that holds the package, looked for beside this executable: the wheel
/// puts `laggard` into `bin` and the package into `lib/python3.x/site-packages`.
pub(crate) fn site_packages() -> Option<PathBuf> {
    let executable = env::current_exe().and_then(fs::canonicalize).ok()?;
    sites_of(executable.parent()?).find(|site| site.join("laggard").is_dir())
}

/// The NCCL profiler plugin: in the package, or beside this executable where both were just
/// built.
pub(crate) fn nccl_plugin() -> Option<PathBuf> {
    const FILE: &str = "liblaggard_nccl.so";
    let executable = env::current_exe().and_then(fs::canonicalize).ok()?;
    let installed = site_packages().map(|site| site.join("laggard").join(FILE));
    let built = executable.with_file_name(FILE);
    installed.into_iter().chain([built]).find(|file| file.is_file())
}

/// The Python of the environment this executable is installed in.
pub(crate) fn python_beside_us() -> Option<PathBuf> {
    site_packages()?;
    let python = env::current_exe().ok()?.with_file_name("python3");
    python.is_file().then_some(python)
}

/// The `site-packages` of a Python that has the package, by asking it.
pub(crate) fn site_packages_of(python: &Path) -> Option<PathBuf> {
    let find = "import importlib.util as u; print(u.find_spec('laggard').origin)";
    let output = Command::new(python).args(["-c", find]).output().ok()?;
    let origin = String::from_utf8(output.stdout).ok()?;
    Some(Path::new(origin.trim()).parent()?.parent()?.to_owned())
        .filter(|site| site.is_dir())
}

/// Candidates for `site-packages` of the environment whose `bin` is given.
fn sites_of(bin: &Path) -> impl Iterator<Item = PathBuf> {
    let lib = bin.parent().map(|root| root.join("lib"));
    let pythons =
        lib.and_then(|lib| fs::read_dir(lib).ok()).into_iter().flatten().flatten();
    pythons
        .map(|entry| entry.path())
        .filter(|path| {
            let name = path.file_name().and_then(OsStr::to_str);
            name.is_some_and(|name| name.starts_with("python3"))
        })
        .map(|python| python.join("site-packages"))
}

/// Whether the environment of a program attaches laggard by itself.
pub(crate) fn attaches_itself(program: &OsStr) -> bool {
    let on_path = |program: &OsStr| {
        let path = env::var_os("PATH").unwrap_or_default();
        env::split_paths(&path)
            .map(|folder| folder.join(program))
            .find(|file| file.is_file())
    };
    let file = if Path::new(program).components().count() > 1 {
        Some(PathBuf::from(program))
    } else {
        on_path(program)
    };
    let bin = file.as_deref().and_then(Path::parent);
    bin.is_some_and(|bin| sites_of(bin).any(|site| site.join(GATE).is_file()))
}

/// Makes a folder in `directory` that lends the package to any Python when it stands first
/// on `PYTHONPATH`; returns the new value of that variable.
///
/// # Errors
/// What the operating system says; [`io::ErrorKind::NotFound`] if there is no package.
pub(crate) fn lend(directory: &Path) -> io::Result<OsString> {
    let site = site_packages().ok_or(io::ErrorKind::NotFound)?;
    let lent = directory.join("python");
    fs::create_dir(&lent)?;
    symlink(site.join("laggard"), lent.join("laggard"))?;
    symlink(site.join(AUTOLOAD), lent.join(AUTOLOAD))?;
    let hook = site.join("laggard/_site/sitecustomize.py");
    symlink(hook, lent.join("sitecustomize.py"))?;
    let old = env::var_os("PYTHONPATH").filter(|path| !path.is_empty());
    let entries = [lent].into_iter().chain(old.iter().flat_map(env::split_paths));
    env::join_paths(entries).map_err(io::Error::other)
}
