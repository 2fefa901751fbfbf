//! Stands in for NCCL: opens the plugin and fills descriptors byte by byte from NCCL's
//! tables of offsets, knowing nothing of the plugin's own structures.

use std::any::type_name_of_val;
use std::env;
use std::ffi::{CString, c_char, c_int, c_void};
use std::fs;
use std::mem::transmute;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr;

use model::{Operation, RankNs};
use ring::{LiveReader, LiveState};

pub(crate) type Handle = *mut c_void;

/// Long after everything that is recorded here.
const LATER: RankNs = RankNs(u64::MAX);
const IN_CHILD: &str = "LAGGARD_TEST_IN_CHILD";
/// A file that says that a test ran to its end.
const DONE: &str = "done";

pub(crate) const GROUP: u64 = 1;
pub(crate) const COLL: u64 = 2;
pub(crate) const P2P: u64 = 4;
pub(crate) const PROXY_OP: u64 = 8;
pub(crate) const PROXY_STEP: u64 = 16;
pub(crate) const GROUP_API: u64 = 256;
pub(crate) const COLL_API: u64 = 512;
pub(crate) const KERNEL_LAUNCH: u64 = 2048;

/// The table of functions, the same for all versions but for the arguments of `init`.
#[repr(C)]
struct Functions {
    name: *const c_char,
    init: *const c_void,
    start: unsafe extern "C" fn(Handle, *mut Handle, *const u64) -> c_int,
    stop: unsafe extern "C" fn(Handle) -> c_int,
    record: unsafe extern "C" fn(Handle, c_int, *const u64) -> c_int,
    finalize: unsafe extern "C" fn(Handle) -> c_int,
}

type InitV1 = unsafe extern "C" fn(*mut Handle, *mut c_int) -> c_int;
type InitV4 = unsafe extern "C" fn(
    *mut Handle,
    *mut c_int,
    *const c_char,
    u64,
    c_int,
    c_int,
    c_int,
    *const c_void,
) -> c_int;
type InitV5 = unsafe extern "C" fn(
    *mut Handle,
    u64,
    *mut c_int,
    *const c_char,
    c_int,
    c_int,
    c_int,
    *const c_void,
) -> c_int;

/// The plugin under one version of the interface.
#[derive(Clone, Copy)]
pub(crate) struct Plugin {
    pub(crate) version: usize,
    library: *mut c_void,
    functions: &'static Functions,
}

// SAFETY: NCCL calls it from many threads, and so do tests.
unsafe impl Send for Plugin {}
// SAFETY: as above.
unsafe impl Sync for Plugin {}

/// A communicator as NCCL introduces it.
#[derive(Clone, Copy)]
pub(crate) struct Introduction {
    pub(crate) hash: u64,
    pub(crate) name: *const c_char,
    pub(crate) ranks: c_int,
    pub(crate) rank: c_int,
}

impl Introduction {
    /// Rank 1 of 4 in a communicator of that hash.
    pub(crate) fn of(hash: u64) -> Self {
        Self {
            hash,
            name: c"dp".as_ptr(),
            ranks: 4,
            rank: 1,
        }
    }
}

impl Plugin {
    /// Opens the library as NCCL does and takes the table of a version.
    pub(crate) fn open(version: usize) -> Self {
        Self::open_at(&Self::library(), version)
    }

    /// The library as it was built.
    pub(crate) fn library() -> PathBuf {
        env::current_exe()
            .unwrap()
            .with_file_name("liblaggard_nccl.so")
    }

    /// Opens a copy of it.
    pub(crate) fn open_at(library: &Path, version: usize) -> Self {
        let path = CString::new(library.as_os_str().as_encoded_bytes()).unwrap();
        let symbol = CString::new(format!("ncclProfiler_v{version}")).unwrap();
        // SAFETY: both are texts that end in zero; the symbol is a table of functions.
        unsafe {
            let library = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
            assert!(
                !library.is_null(),
                "{} cannot be opened",
                path.to_string_lossy()
            );
            let functions = libc::dlsym(library, symbol.as_ptr()).cast::<Functions>();
            let functions = functions.as_ref().expect("a table of this version");
            assert!(!functions.name.is_null());
            Self {
                version,
                library,
                functions,
            }
        }
    }

    /// Gives the library back, as NCCL does with its last communicator.
    pub(crate) fn close(&self) {
        // SAFETY: `library` was opened once for each plugin.
        unsafe { libc::dlclose(self.library) };
    }

    /// The context and the mask of a communicator.
    pub(crate) fn init(&self, of: Introduction) -> (Handle, c_int) {
        let (mut context, mut mask) = (ptr::null_mut(), -1);
        let init = self.functions.init;
        let log = ptr::null();
        // SAFETY: the signatures are NCCL's for these versions.
        let answer = unsafe {
            match self.version {
                1..=3 => transmute::<*const c_void, InitV1>(init)(&raw mut context, &raw mut mask),
                4 => transmute::<*const c_void, InitV4>(init)(
                    &raw mut context,
                    &raw mut mask,
                    of.name,
                    of.hash,
                    2,
                    of.ranks,
                    of.rank,
                    log,
                ),
                _ => transmute::<*const c_void, InitV5>(init)(
                    &raw mut context,
                    of.hash,
                    &raw mut mask,
                    of.name,
                    2,
                    of.ranks,
                    of.rank,
                    log,
                ),
            }
        };
        assert_eq!(answer, 0);
        assert!(!context.is_null(), "some releases hand a null context on");
        (context, mask)
    }

    /// Starts an event; whatever the plugin makes of it, it must write the handle.
    pub(crate) fn start(&self, context: Handle, descriptor: &Descriptor) -> Handle {
        let unwritten = ptr::without_provenance_mut(0xdead);
        let mut handle = unwritten;
        // SAFETY: the descriptor is as large as the version's.
        let answer =
            unsafe { (self.functions.start)(context, &raw mut handle, descriptor.words.as_ptr()) };
        assert_eq!(answer, 0);
        assert_ne!(handle, unwritten, "the handle is always written");
        handle
    }

    pub(crate) fn stop(&self, handle: Handle) {
        // SAFETY: handles are whatever they are: that is what is tested.
        assert_eq!(unsafe { (self.functions.stop)(handle) }, 0);
    }

    /// Records a state without arguments.
    pub(crate) fn record(&self, handle: Handle, state: c_int) {
        self.record_at(handle, state, ptr::null());
    }

    /// Records a state with its arguments: bytes, and steps before version 4.
    pub(crate) fn record_with(&self, handle: Handle, state: c_int, args: [u64; 2]) {
        self.record_at(handle, state, args.as_ptr());
    }

    /// Records a state with arguments somewhere.
    pub(crate) fn record_at(&self, handle: Handle, state: c_int, args: *const u64) {
        // SAFETY: as for `stop`.
        assert_eq!(unsafe { (self.functions.record)(handle, state, args) }, 0);
    }

    pub(crate) fn finalize(&self, context: Handle) {
        // SAFETY: as for `stop`.
        assert_eq!(unsafe { (self.functions.finalize)(context) }, 0);
    }

    /// A collective of float32.
    pub(crate) fn coll(&self, hash: u64, sequence: u64) -> Descriptor {
        let event = Descriptor::new(self.version, COLL, ptr::null_mut());
        let count = 1_048_576;
        match self.version {
            1 => event
                .pointer(24, c"dp".as_ptr())
                .u64(32, hash)
                .u64(40, sequence)
                .u8(48, 4)
                .u64(72, count)
                .u8(84, 7),
            2 | 3 => event
                .pointer(24, c"dp".as_ptr())
                .u64(32, hash)
                .u64(40, sequence)
                .pointer(48, c"AllReduce".as_ptr())
                .u64(72, count)
                .pointer(88, c"ncclFloat32".as_ptr()),
            _ => event
                .u64(24, sequence)
                .pointer(32, c"AllReduce".as_ptr())
                .u64(56, count)
                .pointer(72, c"ncclFloat32".as_ptr()),
        }
    }

    /// A send or a receive of 100 elements of bfloat16.
    pub(crate) fn p2p(&self, hash: u64, sends: bool, peer: c_int) -> Descriptor {
        let event = Descriptor::new(self.version, P2P, ptr::null_mut());
        let function = if sends { c"Send" } else { c"Recv" }.as_ptr();
        match self.version {
            1 => event
                .pointer::<c_char>(24, ptr::null())
                .u64(32, hash)
                .u8(40, if sends { 6 } else { 7 })
                .u8(56, 9)
                .u64(64, 100)
                .i32(72, peer),
            2 | 3 => event
                .pointer::<c_char>(24, ptr::null())
                .u64(32, hash)
                .pointer(40, function)
                .pointer(56, c"ncclBfloat16".as_ptr())
                .u64(64, 100)
                .i32(72, peer),
            _ => event
                .pointer(24, function)
                .pointer(40, c"ncclBfloat16".as_ptr())
                .u64(48, 100)
                .i32(56, peer),
        }
    }

    /// A proxy operation of this process, of so many transfers.
    pub(crate) fn proxy_op(
        &self,
        parent: Handle,
        channel: u8,
        peer: c_int,
        sends: bool,
        transfers: c_int,
    ) -> Descriptor {
        let pid = std::process::id().cast_signed();
        Descriptor::new(self.version, PROXY_OP, parent)
            .i32(24, pid)
            .u8(28, channel)
            .i32(32, peer)
            .i32(36, transfers)
            .i32(40, 4_194_304)
            .i32(44, sends.into())
    }

    pub(crate) fn proxy_step(&self, parent: Handle, step: c_int) -> Descriptor {
        Descriptor::new(self.version, PROXY_STEP, parent).i32(24, step)
    }

    /// An event of which only the head is set.
    pub(crate) fn event(&self, kind: u64, parent: Handle) -> Descriptor {
        Descriptor::new(self.version, kind, parent)
    }

    /// A send of one transfer from its start to its stop.
    pub(crate) fn send_transfer(&self, context: Handle, flow: Handle, step: c_int) {
        let step = self.start(context, &self.proxy_step(flow, step));
        self.record(step, 8);
        self.record_with(step, 20, [77, 0]);
        self.record_with(step, 9, [1000, 0]);
        self.stop(step);
    }
}

/// Bytes of a descriptor, by version.
const SIZES: [usize; 8] = [0, 120, 128, 120, 104, 112, 112, 136];
/// What nobody has written.
const GARBAGE: u64 = 0xaaaa_aaaa_aaaa_aaaa;

/// An event's descriptor as NCCL may leave it: what a version does not set is garbage.
pub(crate) struct Descriptor {
    words: Vec<u64>,
}

impl Descriptor {
    fn new(version: usize, kind: u64, parent: Handle) -> Self {
        let words = vec![GARBAGE; SIZES[version] / 8];
        let event = Self { words };
        let event = if version < 5 {
            event.u8(0, kind as u8)
        } else {
            event.u64(0, kind)
        };
        event.pointer(8, parent).i32(16, 1)
    }

    /// Fills what nobody has written with other bits.
    pub(crate) fn with_garbage(mut self, garbage: u64) -> Self {
        for word in self.words.iter_mut().filter(|word| **word == GARBAGE) {
            *word = garbage;
        }
        self
    }

    fn bytes(mut self, at: usize, bytes: &[u8]) -> Self {
        for (at, byte) in (at..).zip(bytes) {
            let mut word = self.words[at / 8].to_ne_bytes();
            word[at % 8] = *byte;
            self.words[at / 8] = u64::from_ne_bytes(word);
        }
        self
    }

    pub(crate) fn u8(self, at: usize, value: u8) -> Self {
        self.bytes(at, &[value])
    }

    pub(crate) fn i32(self, at: usize, value: c_int) -> Self {
        self.bytes(at, &value.to_ne_bytes())
    }

    pub(crate) fn u64(self, at: usize, value: u64) -> Self {
        self.bytes(at, &value.to_ne_bytes())
    }

    pub(crate) fn pointer<T>(self, at: usize, value: *const T) -> Self {
        self.u64(at, value.addr() as u64)
    }
}

/// Where a test runs: a process of its own, with an environment of its own.
pub(crate) struct Sandbox {
    /// Where live tables stand.
    pub(crate) root: PathBuf,
}

impl Sandbox {
    /// The live table the plugin has made here.
    pub(crate) fn reader(&self) -> LiveReader {
        LiveReader::open(&self.tables()[0]).unwrap()
    }

    /// The files of all live tables.
    pub(crate) fn tables(&self) -> Vec<PathBuf> {
        let jobs = fs::read_dir(&self.root).unwrap();
        jobs.filter_map(|job| fs::read_dir(job.unwrap().path()).ok())
            .flatten()
            .map(|file| file.unwrap().path())
            .filter(|path| path.extension().is_some_and(|ending| ending == "live"))
            .collect()
    }
}

/// Looks at a table when everything in it has settled.
pub(crate) fn look(reader: &mut LiveReader) -> LiveState {
    reader.read(LATER)
}

/// The one operation that is known to be in progress.
pub(crate) fn only(reader: &mut LiveReader) -> Operation {
    let mut state = look(reader);
    state
        .in_progress
        .retain(|operation| !operation.may_have_ended);
    assert_eq!(state.in_progress.len(), 1, "{state:?}");
    state.in_progress.remove(0)
}

/// Runs a test in a process of its own: a process has one recorder, and one environment.
pub(crate) fn alone(body: impl FnOnce(&Sandbox)) {
    alone_with(&[], body);
}

/// The same, with further variables.
#[expect(
    clippy::print_stdout,
    reason = "what a child of a test prints is the test's"
)]
pub(crate) fn alone_with(environment: &[(&str, &str)], body: impl FnOnce(&Sandbox)) {
    // `plugin::odd::a_test::{{closure}}`
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
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(IN_CHILD, "1")
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
    print!("{said}");
}
