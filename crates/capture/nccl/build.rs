//! Pins the plugin: NCCL closes it with its last communicator and opens it again for the
//! next, and a callback may still be on its way. Lets tests set the clock it reads.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rustc-link-arg-tests=-Wl,--export-dynamic-symbol=clock_gettime");
}
