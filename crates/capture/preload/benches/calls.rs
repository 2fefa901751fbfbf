//! What a call of NCCL's, and a work request, costs more with the library preloaded: the bare stand-in for NCCL
//! and the same through the library, in one run.
//!
//! The library is preloaded by running this bench again. A sample is a thousand calls, so
//! that what is measured is calling and not the clock; the table wraps around as it does in a
//! long job.
#![cfg(target_arch = "x86_64")]
#![expect(unsafe_code, reason = "NCCL calls are C calls")]

use std::env;
use std::ffi::{CStr, CString, c_int, c_void};
use std::mem::transmute;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::ptr;

use divan::Bencher;
use divan::counter::ItemsCount;

const CALLS: u32 = 1000;
const FOLDER: &str = "LAGGARD_BENCH_FOLDER";

type Comm = *mut c_void;
type Init = unsafe extern "C" fn(*mut Comm, c_int, c_int, c_int) -> c_int;
type Collective = unsafe extern "C" fn(Comm, usize, c_int) -> c_int;

fn main() {
    if env::var_os(FOLDER).is_none() {
        again_preloaded();
    }
    divan::main();
}

/// Builds the libraries and runs this bench again between them.
fn again_preloaded() -> ! {
    let root = tempfile::tempdir().expect("a temporary directory").keep();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/preload");
    let (nccl, torch) = (source.join("fake_nccl.c"), source.join("fake_torch.c"));
    let built = root.join("libnccl.so.2");
    let compile = |name: &str, what: &[&Path]| {
        let mut command = Command::new("cc");
        command.args(["-shared", "-fPIC", "-O2", "-DNUMBER=1"]);
        command.arg(format!("-Wl,-soname,{name},-rpath,{}", root.display()));
        let done = command.arg("-o").arg(root.join(name)).args(what).status();
        assert!(done.expect("a C compiler").success());
    };
    compile("libnccl.so.2", &[&nccl]);
    compile("libtorch.so", &[&torch, &built]);
    // Bound to itself: its calls go past us.
    compile("libbare.so", &["-Wl,-Bsymbolic".as_ref(), &torch, &nccl]);
    let (verbs, net) = (source.join("fake_verbs.c"), source.join("fake_net.c"));
    let map = format!(
        "-Wl,--version-script={}",
        source.join("fake_verbs.map").display()
    );
    for name in ["libibverbs.so.1", "libbareverbs.so"] {
        compile(name, &[map.as_ref(), &verbs]);
    }
    compile("libnet.so", &[&net]);
    compile(
        "libbarenet.so",
        &[r#"-DVERBS="libbareverbs.so""#.as_ref(), &net],
    );
    let this = env::current_exe().expect("this bench");
    let ours = this.with_file_name("liblaggard_preload.so");
    assert!(ours.is_file(), "the library is built beside the bench");
    let mut command = Command::new(this);
    command.args(env::args_os().skip(1));
    command
        .env("LD_PRELOAD", ours)
        .env("LAGGARD_DIR", &root)
        .env(FOLDER, &root);
    command.env("LD_LIBRARY_PATH", &root);
    panic!("{}", command.exec());
}

#[divan::bench]
fn all_reduce_of_the_bare_stand_in(bencher: Bencher<'_, '_>) {
    measure(bencher, "libbare.so", c"all_reduce");
}

#[divan::bench]
fn all_reduce_through_the_library(bencher: Bencher<'_, '_>) {
    measure(bencher, "libtorch.so", c"all_reduce");
}

#[divan::bench]
fn send_of_the_bare_stand_in(bencher: Bencher<'_, '_>) {
    measure(bencher, "libbare.so", c"send_to");
}

#[divan::bench]
fn send_through_the_library(bencher: Bencher<'_, '_>) {
    measure(bencher, "libtorch.so", c"send_to");
}

/// A work request posted and its completion polled. Of two libibverbs the first is followed.
#[divan::bench]
fn request_through_the_library(bencher: Bencher<'_, '_>) {
    requests(bencher, "libnet.so");
}

#[divan::bench]
fn request_to_the_bare_stand_in(bencher: Bencher<'_, '_>) {
    net("libnet.so");
    requests(bencher, "libbarenet.so");
}

type Numbers = unsafe extern "C" fn(c_int, c_int, c_int) -> c_int;

/// Opens a network with one connection; its rounds.
fn net(library: &str) -> Numbers {
    let path = Path::new(&env::var_os(FOLDER).expect("set above")).join(library);
    let path = CString::new(path.as_os_str().as_encoded_bytes()).expect("no zeros");
    // SAFETY: names end in zero, and the functions are those of fake_net.c.
    unsafe {
        let library = libc::dlopen(path.as_ptr(), libc::RTLD_NOW);
        assert!(!library.is_null(), "it was built");
        let function =
            |name: &CStr| transmute::<*mut c_void, Numbers>(libc::dlsym(library, name.as_ptr()));
        assert_eq!(function(c"net_open")(0, 0, 0), 0);
        function(c"net_connect")(0, 0, 0);
        function(c"net_poll")(c_int::MAX, 0, 0);
        function(c"net_rounds")
    }
}

fn requests(bencher: Bencher<'_, '_>, library: &str) {
    let rounds = net(library);
    bencher.counter(ItemsCount::new(CALLS)).bench_local(|| {
        // SAFETY: as above.
        let done = unsafe { rounds(0, CALLS.cast_signed(), 0) };
        assert_eq!(done, CALLS.cast_signed());
    });
}

/// Two clocks are part of each call, and dear where they are virtual.
#[divan::bench]
fn the_two_clocks_alone(bencher: Bencher<'_, '_>) {
    bencher.counter(ItemsCount::new(CALLS)).bench(|| {
        for _ in 0..CALLS {
            divan::black_box((probe::now(), probe::coarse()));
        }
    });
}

fn measure(bencher: Bencher<'_, '_>, library: &str, function: &CStr) {
    let path = Path::new(&env::var_os(FOLDER).expect("set above")).join(library);
    let path = CString::new(path.as_os_str().as_encoded_bytes()).expect("no zeros");
    // SAFETY: names end in zero, and the functions are those of fake_torch.c.
    let (call, comm) = unsafe {
        let library = libc::dlopen(path.as_ptr(), libc::RTLD_NOW);
        assert!(!library.is_null(), "it was built");
        let init = transmute::<*mut c_void, Init>(libc::dlsym(library, c"init_rank".as_ptr()));
        let mut comm = ptr::null_mut();
        assert_eq!(init(&raw mut comm, 4, 'a' as c_int, 1), 0);
        let call = libc::dlsym(library, function.as_ptr());
        (transmute::<*mut c_void, Collective>(call), comm)
    };
    bencher.counter(ItemsCount::new(CALLS)).bench_local(|| {
        for _ in 0..CALLS {
            // SAFETY: as above.
            unsafe { call(comm, 1 << 20, 2) };
        }
    });
}
