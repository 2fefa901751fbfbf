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
    // Links were followed: the package lies beside the file, not beside a link to it.
    sites_of(executable.parent()?).find(|site| site.join("laggard").is_dir())
}

/// The NCCL profiler plugin.
pub(crate) fn nccl_plugin() -> Option<PathBuf> {
    library("liblaggard_nccl.so")
}

/// The library that stands between a program and its NCCL.
pub(crate) fn preload() -> Option<PathBuf> {
    // Built for other machines it exports nothing: its exports are x86-64 assembly.
    library("liblaggard_preload.so").filter(|_| cfg!(target_arch = "x86_64"))
}

/// A library of ours: in the package, or beside this executable where both were just built.
fn library(file: &str) -> Option<PathBuf> {
    let executable = env::current_exe().and_then(fs::canonicalize).ok()?;
    let installed = site_packages().map(|site| site.join("laggard").join(file));
    let built = executable.with_file_name(file);
    installed
        .into_iter()
        .chain([built])
        .find(|file| file.is_file())
}

/// The first NCCL that has profiler plugins.
pub(crate) const FIRST_WITH_PLUGIN: (u32, u32) = (2, 23);

/// The version of NCCL that comes with the environment of a program, major and minor, as far as
/// the names of files say.
pub(crate) fn nccl_of(program: &OsStr) -> Option<(u32, u32)> {
    let bin = bin_of(program)?;
    sites_of(&bin)
        .flat_map(|site| names_in(&site))
        .find_map(|name| {
            // nvidia_nccl_cu12-2.20.5.dist-info
            let (_, version) = name.strip_prefix("nvidia_nccl_cu")?.split_once('-')?;
            version_of(version.strip_suffix(".dist-info")?)
        })
        .or_else(|| {
            // As conda installs it.
            names_in(&bin.parent()?.join("lib"))
                .find_map(|name| version_of(name.strip_prefix("libnccl.so.")?))
        })
}

/// Names of what is in a folder; none if it cannot be read.
fn names_in(folder: &Path) -> impl Iterator<Item = String> + use<> {
    fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
}

/// The first two numbers of three or more.
fn version_of(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split('.');
    let (major, minor) = (numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?);
    // `libnccl.so.2` is a link, and says no more than the major version.
    numbers.next().map(|_| (major, minor))
}

/// The Python of the environment this executable is installed in.
pub(crate) fn python_beside_us() -> Option<PathBuf> {
    // Without the package beside us any `python3` there is that of another environment.
    site_packages()?;
    let python = env::current_exe().ok()?.with_file_name("python3");
    python.is_file().then_some(python)
}

/// The `site-packages` of a Python that has the package, by asking it.
pub(crate) fn site_packages_of(python: &Path) -> Option<PathBuf> {
    let find = "import importlib.util as u; print(u.find_spec('laggard').origin)";
    let output = Command::new(python).args(["-c", find]).output().ok()?;
    // Without the package Python fails and prints nothing; an empty path has no parent.
    let origin = String::from_utf8(output.stdout).ok()?;
    Some(Path::new(origin.trim()).parent()?.parent()?.to_owned()).filter(|site| site.is_dir())
}

/// Candidates for `site-packages` of the environment whose `bin` is given.
fn sites_of(bin: &Path) -> impl Iterator<Item = PathBuf> {
    bin.parent()
        .and_then(|root| fs::read_dir(root.join("lib")).ok())
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            let name = path.file_name().and_then(OsStr::to_str);
            name.is_some_and(|name| name.starts_with("python3"))
        })
        .map(|python| python.join("site-packages"))
}

/// The folder a program is in.
fn bin_of(program: &OsStr) -> Option<PathBuf> {
    // As a shell finds it: only a name without a folder is looked for.
    if Path::new(program).components().count() > 1 {
        return Some(Path::new(program).parent()?.to_owned());
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let file = env::split_paths(&path)
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())?;
    Some(file.parent()?.to_owned())
}

/// Whether the environment of a program attaches laggard by itself.
pub(crate) fn attaches_itself(program: &OsStr) -> bool {
    bin_of(program).is_some_and(|bin| sites_of(&bin).any(|site| site.join(GATE).is_file()))
}

/// That something is there already is as good as having made it.
fn or_there(made: io::Result<()>) -> io::Result<()> {
    match made {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// Makes a folder in `directory` that lends the package to any Python when it stands first
/// on `PYTHONPATH`; returns the new value of that variable. Others may do the same there.
///
/// # Errors
/// What the operating system says; [`io::ErrorKind::NotFound`] if there is no package.
pub(crate) fn lend(directory: &Path) -> io::Result<OsString> {
    let site = site_packages().ok_or(io::ErrorKind::NotFound)?;
    let lent = directory.join("python");
    or_there(fs::create_dir(&lent))?;
    or_there(symlink(site.join("laggard"), lent.join("laggard")))?;
    or_there(symlink(site.join(AUTOLOAD), lent.join(AUTOLOAD)))?;
    // Python reads `.pth` files in `site-packages` only, not on `PYTHONPATH`.
    let hook = site.join("laggard/_site/sitecustomize.py");
    or_there(symlink(hook, lent.join("sitecustomize.py")))?;
    // An empty entry would put the current folder on the path of Python.
    let old = env::var_os("PYTHONPATH").filter(|path| !path.is_empty());
    let entries = [lent]
        .into_iter()
        .chain(old.iter().flat_map(env::split_paths));
    env::join_paths(entries).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nccl_of_an_environment_is_known_by_the_names_of_its_files() {
        let of = |file: &str| {
            let root = tempfile::tempdir().unwrap();
            fs::create_dir_all(root.path().join("bin")).unwrap();
            let program = root.path().join("bin/torchrun");
            fs::write(&program, "").unwrap();
            let file = root.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "").unwrap();
            nccl_of(program.as_os_str())
        };
        let site = "lib/python3.11/site-packages";
        let wheel = |name: &str| of(&format!("{site}/{name}"));
        assert_eq!(wheel("nvidia_nccl_cu12-2.20.5.dist-info"), Some((2, 20)));
        assert_eq!(wheel("nvidia_nccl_cu13-2.30.7.dist-info"), Some((2, 30)));
        assert_eq!(wheel("nvidia_nccl_cu12-new.dist-info"), None);
        assert_eq!(of("lib/libnccl.so.2.19.3"), Some((2, 19)));
        assert_eq!(of("lib/libnccl.so.2"), None);
    }
}
