//! Code at which the handler continues the program.
//!
//! A system call may change `rcx` and `r11`: the handler puts the return address into `rcx`, and an argument of the
//! entry into `r11`. The 128 bytes below the stack pointer may be in use.

use std::arch::naked_asm;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What new threads pass to the kernel: the range of this library's code, and the selector's offset from the thread
/// pointer.
pub(super) static CODE_START: AtomicUsize = AtomicUsize::new(0);
pub(super) static CODE_LEN: AtomicUsize = AtomicUsize::new(0);
static SELECTOR: AtomicUsize = AtomicUsize::new(0);

pub(super) fn note_selector(address: usize) {
    let pointer: usize;
    // SAFETY: the first word of a thread's control block is its own address.
    unsafe { std::arch::asm!("mov {}, fs:[0]", out(reg) pointer, options(nostack, readonly)) };
    SELECTOR.store(address.wrapping_sub(pointer), Ordering::Relaxed);
}

/// Bytes that the entries below take from the stack of a new thread: what [`hand_over`] puts there.
pub(super) const TAKEN: usize = 128 + 16;

/// Makes the system call.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn plain() {
    naked_asm!(
        "lea rsp, [rsp - 136]",
        "mov [rsp], rcx",
        "syscall",
        "mov rcx, [rsp]",
        "lea rsp, [rsp + 136]",
        "jmp rcx",
    )
}

/// Returns from a signal handler of the application.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn leave(_stack: usize) -> ! {
    naked_asm!("mov rsp, rdi", "mov eax, 15", "syscall", "ud2")
}

/// Returns from this library's own handler.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn restore() {
    naked_asm!("mov eax, 15", "syscall")
}

/// Makes the system call with the signal set in `r11` in place of the one that a register points to.
macro_rules! with_mask {
    ($name:ident, $register:literal) => {
        #[unsafe(naked)]
        pub(super) unsafe extern "C" fn $name() {
            naked_asm!(
                "lea rsp, [rsp - 128]",
                "push rcx",
                concat!("push ", $register),
                "push r11",
                concat!("mov ", $register, ", rsp"),
                "syscall",
                "lea rsp, [rsp + 8]",
                concat!("pop ", $register),
                "pop rcx",
                "lea rsp, [rsp + 128]",
                "jmp rcx",
            )
        }
    };
}

with_mask!(mask_in_rdi, "rdi");
with_mask!(mask_in_r10, "r10");
with_mask!(mask_in_r8, "r8");

/// As above for `pselect6`, which takes a pointer to a pointer.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn mask_behind_r9() {
    naked_asm!(
        "lea rsp, [rsp - 128]",
        "push rcx",
        "push r9",
        "push r11",
        "push 8",
        "lea r11, [rsp + 8]",
        "push r11",
        "mov r9, rsp",
        "syscall",
        "lea rsp, [rsp + 24]",
        "pop r9",
        "pop rcx",
        "lea rsp, [rsp + 128]",
        "jmp rcx",
    )
}

/// Creates a child on a stack of its own, with `r11` in place of a register. The child finds on its stack what the
/// parent has on its own: see [`hand_over`].
macro_rules! child {
    ($name:ident, $register:literal, $($arm:literal),*) => {
        #[unsafe(naked)]
        pub(super) unsafe extern "C" fn $name() {
            naked_asm!(
                "lea rsp, [rsp - 128]",
                "push rcx",
                concat!("push ", $register),
                concat!("mov ", $register, ", r11"),
                "syscall",
                concat!("pop ", $register),
                "pop rcx",
                "lea rsp, [rsp + 128]",
                $($arm,)*
                "jmp rcx",
                start = sym CODE_START,
                len = sym CODE_LEN,
                selector = sym SELECTOR,
            )
        }
    };
}

/// A thread with thread-local storage of its own arms itself before it runs.
macro_rules! thread {
    ($name:ident, $register:literal) => {
        child!(
            $name,
            $register,
            "test rax, rax",
            "jnz 2f",
            "push rcx",
            "push rdi",
            "push rsi",
            "push rdx",
            "push r10",
            "push r8",
            "mov eax, 157",
            "mov edi, 59",
            "mov esi, 1",
            "mov rdx, [rip + {start}]",
            "mov r10, [rip + {len}]",
            "mov r8, fs:[0]",
            "add r8, [rip + {selector}]",
            "mov byte ptr [r8], 1",
            "syscall",
            "pop r8",
            "pop r10",
            "pop rdx",
            "pop rsi",
            "pop rdi",
            "pop rcx",
            "xor eax, eax",
            "2:"
        );
    };
}

child!(clone, "rsi", "/* {start} {len} {selector} */");
child!(clone3, "rdi", "/* {start} {len} {selector} */");
thread!(clone_thread, "rsi");
thread!(clone3_thread, "rdi");

/// Puts on the stack of a child what the entries above take from it, and returns the stack's new top.
pub(super) unsafe fn hand_over(top: usize, register: usize, back: usize) -> usize {
    let new = (top - TAKEN) as *mut [usize; 2];
    // SAFETY: the caller vouches for the stack, which is not in use yet.
    unsafe { new.write_unaligned([register, back]) };
    new as usize
}
