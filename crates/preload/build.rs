//! Linker options: the library binds its calls at load time and exports only the C library's symbols and its own API.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // The name under which a program in a container finds the library without a path.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libforebay.so");
    // A lazily bound call could be resolved inside a signal handler of the application.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,now");
    // The symbols for the ends of the list of hooks are private.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,start-stop-visibility=hidden");
    // The library is never unloaded: its threads may still run when the last reference is dropped.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
