//! Builds what stands in for NCCL and for PyTorch, and runs tests beside them.

use std::any::type_name_of_val;
use std::env;
use std::ffi::{CStr, CString, c_char, c_int, c_ulong, c_void};
use std::fs;
use std::mem::transmute;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr;

use model::RankNs;
use ring::{LiveReader, LiveState};

pub(crate) type Comm = *mut c_void;

const IN_CHILD: &str = "LAGGARD_TEST_IN_CHILD";
/// A file that says that a test ran to its end.
const DONE: &str = "done";

/// A library that calls NCCL, or one that stands in for NCCL.
#[derive(Clone, Copy)]
pub(crate) struct Library(*mut c_void);

// SAFETY: handles of the loader are for any thread.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

/// What NCCL was called with last.
#[repr(C)]
struct Last {
    function: *const c_char,
    arguments: [c_ulong; 8],
    calls: c_int,
}

impl Library {
    /// Opens a library for nobody else, as Python does.
    pub(crate) fn open(path: &Path) -> Self {
        let name = CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
        // SAFETY: a text that ends in zero.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "{} is not there", path.display());
        Self(handle)
    }

    pub(crate) fn close(self) {
        // SAFETY: it was opened once.
        unsafe { libc::dlclose(self.0) };
    }

    fn symbol(self, name: &CStr) -> *mut c_void {
        // SAFETY: a text that ends in zero.
        let symbol = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!symbol.is_null(), "{name:?} is not there");
        symbol
    }

    /// Makes a communicator of four ranks, in which this is rank 1.
    pub(crate) fn init_rank(self, name: char) -> Comm {
        let (comm, answer) = self.init(c"init_rank", name);
        assert_eq!(answer, 0);
        comm
    }

    /// Makes one by a function that takes the name of its id, and perhaps a configuration.
    pub(crate) fn init(self, function: &CStr, name: char) -> (Comm, c_int) {
        type Init = unsafe extern "C" fn(*mut Comm, c_int, c_char, c_int, *mut c_void) -> c_int;
        let mut comm = ptr::null_mut();
        let at = &raw mut comm;
        // SAFETY: the function's signature; what it does not take it does not look at.
        let answer = unsafe {
            let init = transmute::<*mut c_void, Init>(self.symbol(function));
            init(at, 4, name as c_char, 1, ptr::without_provenance_mut(9))
        };
        (comm, answer)
    }

    pub(crate) fn init_at(self, at: *mut Comm, name: char) -> c_int {
        type Init = unsafe extern "C" fn(*mut Comm, c_int, c_char, c_int) -> c_int;
        // SAFETY: the function's signature.
        unsafe {
            transmute::<*mut c_void, Init>(self.symbol(c"init_rank"))(at, 4, name as c_char, 1)
        }
    }

    pub(crate) fn init_all(self, devices: usize) -> Vec<Comm> {
        type Init = unsafe extern "C" fn(*mut Comm, c_int, *const c_int) -> c_int;
        let mut comms = vec![ptr::null_mut(); devices];
        // SAFETY: the function's signature; there is room for all.
        let answer = unsafe {
            let init = transmute::<*mut c_void, Init>(self.symbol(c"init_all"));
            init(
                comms.as_mut_ptr(),
                c_int::try_from(devices).unwrap(),
                ptr::null(),
            )
        };
        assert_eq!(answer, 0);
        comms
    }

    pub(crate) fn split(self, whole: Comm, colour: c_int, key: c_int) -> Comm {
        type Split = unsafe extern "C" fn(Comm, c_int, c_int, *mut Comm, *mut c_void) -> c_int;
        let mut part = ptr::null_mut();
        // SAFETY: the function's signature.
        unsafe {
            let split = transmute::<*mut c_void, Split>(self.symbol(c"comm_split"));
            split(whole, colour, key, &raw mut part, ptr::null_mut());
        }
        part
    }

    /// Calls a function of nothing.
    pub(crate) fn call(self, function: &CStr) -> c_int {
        // SAFETY: the function's signature.
        unsafe {
            transmute::<*mut c_void, unsafe extern "C" fn() -> c_int>(self.symbol(function))()
        }
    }

    /// Calls a function of a communicator.
    pub(crate) fn with(self, function: &CStr, comm: Comm) -> c_int {
        // SAFETY: the function's signature.
        unsafe {
            transmute::<*mut c_void, unsafe extern "C" fn(Comm) -> c_int>(self.symbol(function))(
                comm,
            )
        }
    }

    /// Calls a collective of so many elements.
    pub(crate) fn collective(self, function: &CStr, comm: Comm, count: usize) -> c_int {
        self.to(function, comm, count, 0)
    }

    /// Calls one that sends to, or receives from, a rank.
    pub(crate) fn to(self, function: &CStr, comm: Comm, count: usize, peer: c_int) -> c_int {
        type Call = unsafe extern "C" fn(Comm, usize, c_int) -> c_int;
        // SAFETY: the function's signature; what it does not take it does not look at.
        unsafe { transmute::<*mut c_void, Call>(self.symbol(function))(comm, count, peer) }
    }

    /// Calls a function of three numbers.
    pub(crate) fn numbers(self, function: &CStr, [a, b, c]: [c_int; 3]) -> c_int {
        type Call = unsafe extern "C" fn(c_int, c_int, c_int) -> c_int;
        // SAFETY: the function's signature; what it does not take it does not look at.
        unsafe { transmute::<*mut c_void, Call>(self.symbol(function))(a, b, c) }
    }

    /// Calls a function of a name and a number.
    pub(crate) fn name_and_number(self, function: &CStr, name: &CStr, number: c_int) -> c_int {
        type Call = unsafe extern "C" fn(*const c_char, c_int) -> c_int;
        // SAFETY: as above.
        unsafe { transmute::<*mut c_void, Call>(self.symbol(function))(name.as_ptr(), number) }
    }

    /// Calls a function of two names.
    pub(crate) fn names(self, function: &CStr, [a, b]: [&CStr; 2]) -> c_int {
        type Call = unsafe extern "C" fn(*const c_char, *const c_char) -> c_int;
        // SAFETY: as above.
        unsafe { transmute::<*mut c_void, Call>(self.symbol(function))(a.as_ptr(), b.as_ptr()) }
    }

    /// What the stand-in for NCCL answers from now on.
    pub(crate) fn answer(self, answer: c_int) {
        // SAFETY: a number that nothing else writes.
        unsafe { self.symbol(c"fake_answer").cast::<c_int>().write(answer) };
    }

    /// The function that was called last, and with what.
    pub(crate) fn last(self) -> (String, [c_ulong; 8]) {
        // SAFETY: the structure as it is there; the name is a literal.
        unsafe {
            let last = self.symbol(c"fake_last").cast::<Last>().read();
            let name = CStr::from_ptr(last.function).to_str().unwrap();
            (name.to_owned(), last.arguments)
        }
    }

    /// How often it was called.
    pub(crate) fn calls(self) -> c_int {
        // SAFETY: the structure as it is there.
        unsafe { self.symbol(c"fake_last").cast::<Last>().read() }.calls
    }
}

/// Where a test runs: a process of its own, preloaded, with libraries of its own.
pub(crate) struct Sandbox {
    /// Where live tables stand, and the libraries.
    pub(crate) root: PathBuf,
}

impl Sandbox {
    /// What stands in for PyTorch, and for the NCCL it is linked with.
    pub(crate) fn linked(&self) -> (Library, Library) {
        let torch = Library::open(&self.root.join("libtorch.so"));
        (torch, Library::open(&self.root.join("libnccl.so.2")))
    }

    /// A PyTorch that has its NCCL in itself.
    pub(crate) fn bundled(&self) -> Library {
        Library::open(&self.root.join("libbundled.so"))
    }

    /// The live table that was made here.
    pub(crate) fn reader(&self) -> LiveReader {
        LiveReader::open(&self.tables()[0]).unwrap()
    }

    /// The files of all live tables.
    pub(crate) fn tables(&self) -> Vec<PathBuf> {
        self.files("calls")
    }

    /// The files of all jobs here whose names end so.
    pub(crate) fn files(&self, with: &str) -> Vec<PathBuf> {
        let jobs = fs::read_dir(&self.root).unwrap();
        jobs.filter_map(|job| fs::read_dir(job.unwrap().path()).ok())
            .flatten()
            .map(|file| file.unwrap().path())
            .filter(|path| path.extension().is_some_and(|ending| ending == with))
            .collect()
    }
}

/// Looks at a table when everything in it has settled.
pub(crate) fn look(reader: &mut LiveReader) -> LiveState {
    reader.read(RankNs(u64::MAX))
}

/// Runs a test in a preloaded process of its own.
pub(crate) fn alone(body: impl FnOnce(&Sandbox)) {
    alone_with(&[], body);
}

/// The same, with further variables.
pub(crate) fn alone_with(environment: &[(&str, &str)], body: impl FnOnce(&Sandbox)) {
    // `preload::records::a_test::{{closure}}`
    let name = type_name_of_val(&body);
    let name = name
        .trim_end_matches("::{{closure}}")
        .split_once("::")
        .unwrap()
        .1;
    if env::var_os(IN_CHILD).is_some() {
        let sandbox = Sandbox {
            root: env::var_os("LAGGARD_DIR").unwrap().into(),
        };
        body(&sandbox);
        fs::write(sandbox.root.join(DONE), "").unwrap();
        return;
    }
    let root = tempfile::tempdir().unwrap();
    build(root.path());
    let ours = env::current_exe()
        .unwrap()
        .with_file_name("liblaggard_preload.so");
    assert!(ours.is_file(), "{} is not there", ours.display());
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(IN_CHILD, "1")
        .env("LD_PRELOAD", ours)
        .env("LAGGARD_DIR", root.path())
        .env("LAGGARD_JOB", "job")
        .envs([("RANK", "5"), ("WORLD_SIZE", "8"), ("LOCAL_RANK", "1")])
        .env_remove("LAGGARD_ENABLE")
        .envs(environment.iter().copied())
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (said, errors) = (text(&output.stdout), text(&output.stderr));
    let ran = root.path().join(DONE).exists();
    assert!(
        output.status.success() && ran,
        "{}\n{said}{errors}",
        output.status
    );
}

/// `libnccl.so.2`, `libtorch.so` that needs it, `libbundled.so` that has its own, and
/// `liborphan.so` that has none; `libibverbs.so.1`, and `libnet.so` that opens it.
fn build(folder: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/preload");
    let nccl = source.join("fake_nccl.c");
    let torch = source.join("fake_torch.c");
    let here = format!("-Wl,-rpath,{}", folder.display());
    let built = folder.join("libnccl.so.2");
    compile(
        folder,
        "libnccl.so.2",
        &["-DNUMBER=1".as_ref(), nccl.as_path()],
    );
    compile(
        folder,
        "libtorch.so",
        &[here.as_ref(), torch.as_path(), &built],
    );
    compile(folder, "liborphan.so", &[torch.as_path()]);
    let (net, map) = (source.join("fake_net.c"), source.join("fake_verbs.map"));
    let map = format!("-Wl,--version-script={}", map.display());
    let verbs = source.join("fake_verbs.c");
    compile(folder, "libibverbs.so.1", &[map.as_ref(), verbs.as_path()]);
    compile(folder, "libnet.so", &[here.as_ref(), net.as_path()]);
    compile(
        folder,
        "libbundled.so",
        &["-DNUMBER=2".as_ref(), &torch, &nccl],
    );
}

fn compile(folder: &Path, name: &str, what: &[&Path]) {
    let done = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(folder.join(name))
        .arg(format!("-Wl,-soname,{name}"))
        .args(what)
        .output()
        .unwrap();
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
}
