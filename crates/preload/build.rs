//! The library binds its own calls at load time and keeps every symbol but the libc ones to itself.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // A program that is run in a container without a path to the library must still find itself by this name.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libforebay.so");
    // A lazily bound call would be resolved inside somebody's signal handler.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,now");
    // Threads of ours may still run when the last reference goes: the library is never unloaded.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
