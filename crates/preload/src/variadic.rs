//! Variadic functions: each collects its arguments as C does, and passes the list on.
//!
//! On architectures other than x86-64 the C library's functions are not replaced.

use crate::program::{self, List};
use crate::stdio;
use crate::{errno, hook};
use libc::{c_char, c_int, c_void};

/// `va_list` of x86-64.
#[repr(C)]
struct Arguments {
    /// Bytes of the saved registers that have been used.
    used: u32,
    used_floats: u32,
    /// The arguments that are not in registers.
    others: *const usize,
    registers: *const u8,
}

impl Arguments {
    /// The next argument, if it is a word.
    fn next(&mut self) -> usize {
        // SAFETY: the caller was called with another argument, or the list has ended before.
        unsafe {
            if self.used < 48 {
                let word = self.registers.add(self.used as usize).cast::<usize>().read();
                self.used += 8;
                return word;
            }
            let word = self.others.read();
            self.others = self.others.add(1);
            word
        }
    }

    /// The arguments of a program, up to and including the null pointer.
    fn list(&mut self, first: *const c_char) -> Vec<*const c_char> {
        let mut list = vec![first];
        while list.last().is_some_and(|last| !last.is_null()) {
            list.push(self.next() as *const c_char);
        }
        list
    }
}

/// Defines a function that saves its registers as a `va_list`, of which the first `$fixed` arguments are named, puts
/// the address of the list into the next argument register, and calls `$target`.
macro_rules! variadic {
    ($name:ident, $fixed:literal, $register:literal, $target:path) => {
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[cfg_attr(test, allow(dead_code))]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            std::arch::naked_asm!(
                "sub rsp, 216",
                "mov [rsp], rdi",
                "mov [rsp + 8], rsi",
                "mov [rsp + 16], rdx",
                "mov [rsp + 24], rcx",
                "mov [rsp + 32], r8",
                "mov [rsp + 40], r9",
                "test al, al",
                "je 2f",
                "movaps [rsp + 48], xmm0",
                "movaps [rsp + 64], xmm1",
                "movaps [rsp + 80], xmm2",
                "movaps [rsp + 96], xmm3",
                "movaps [rsp + 112], xmm4",
                "movaps [rsp + 128], xmm5",
                "movaps [rsp + 144], xmm6",
                "movaps [rsp + 160], xmm7",
                "2:",
                concat!("mov dword ptr [rsp + 176], 8 * ", $fixed),
                "mov dword ptr [rsp + 180], 48",
                "lea rax, [rsp + 224]",
                "mov [rsp + 184], rax",
                "mov [rsp + 192], rsp",
                concat!("lea ", $register, ", [rsp + 176]"),
                "call {target}",
                "add rsp, 216",
                "ret",
                target = sym $target,
            )
        }
    };
}

variadic!(dprintf, "2", "rdx", print);
variadic!(__dprintf_chk, "3", "rcx", print_checked);
variadic!(execl, "2", "rdx", run_list);
variadic!(execlp, "2", "rdx", run_list_in_path);
variadic!(execle, "2", "rdx", run_list_with_environment);

unsafe extern "C" {
    fn vdprintf(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int;
    fn execve(path: *const c_char, arguments: List, environment: List) -> c_int;
    fn execvpe(path: *const c_char, arguments: List, environment: List) -> c_int;
}

unsafe extern "C" fn print(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int {
    // SAFETY: this library's hook of this name, or the function it replaces.
    unsafe { vdprintf(fd, format, arguments) }
}

unsafe extern "C" fn print_checked(
    fd: c_int,
    _: c_int,
    format: *const c_char,
    arguments: *mut c_void,
) -> c_int {
    let before = errno::Errno::last();
    match hook::guarded(|| stdio::print(fd, format, arguments)) {
        Ok(count) => {
            before.set();
            count
        }
        Err(errno::Stop::Errno(errno)) => hook::failed(errno),
        // SAFETY: as above.
        Err(_) => unsafe { vdprintf(fd, format, arguments) },
    }
}

/// The arguments as a list; `None` if there is no memory for them.
fn listed<'a>(
    first: *const c_char,
    arguments: *mut Arguments,
) -> Option<(Vec<*const c_char>, &'a mut Arguments)> {
    let gathered = std::panic::catch_unwind(|| {
        // SAFETY: created by the calling function, which waits.
        let arguments = unsafe { &mut *arguments };
        (arguments.list(first), arguments)
    });
    gathered.ok()
}

unsafe extern "C" fn run_list(path: *const c_char, first: *const c_char, arguments: *mut Arguments) -> c_int {
    let Some((list, _)) = listed(first, arguments) else { return hook::failed(errno::Errno(libc::ENOMEM)) };
    // SAFETY: this library's hook of this name; the list ends with a null pointer.
    unsafe { execve(path, list.as_ptr(), program::present_environment()) }
}

unsafe extern "C" fn run_list_in_path(
    path: *const c_char,
    first: *const c_char,
    arguments: *mut Arguments,
) -> c_int {
    let Some((list, _)) = listed(first, arguments) else { return hook::failed(errno::Errno(libc::ENOMEM)) };
    // SAFETY: as above.
    unsafe { execvpe(path, list.as_ptr(), program::present_environment()) }
}

unsafe extern "C" fn run_list_with_environment(
    path: *const c_char,
    first: *const c_char,
    arguments: *mut Arguments,
) -> c_int {
    let Some((list, rest)) = listed(first, arguments) else {
        return hook::failed(errno::Errno(libc::ENOMEM));
    };
    // SAFETY: as above; the environment follows the list.
    unsafe { execve(path, list.as_ptr(), rest.next() as List) }
}
