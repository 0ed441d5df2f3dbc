//! Raw system calls, which are not intercepted and do not change `errno`.

use crate::errno::Errno;

#[cfg(target_arch = "x86_64")]
/// Makes a system call, bypassing the C library and this library's interception.
pub(crate) unsafe fn system_call(number: i64, args: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the caller vouches for the call; the kernel preserves all registers but these.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") args[0], in("rsi") args[1], in("rdx") args[2],
            in("r10") args[3], in("r8") args[4], in("r9") args[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    result
}

#[cfg(target_arch = "aarch64")]
/// Makes a system call, bypassing the C library and this library's interception.
pub(crate) unsafe fn system_call(number: i64, args: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the caller vouches for the call; the kernel preserves all registers but these.
    unsafe {
        std::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") args[0] as isize => result,
            in("x1") args[1], in("x2") args[2], in("x3") args[3], in("x4") args[4], in("x5") args[5],
            options(nostack)
        );
    }
    result
}

/// As [`system_call`], with errors as `Err`.
///
/// # Safety
///
/// As for the system call.
pub(crate) unsafe fn try_system_call(number: i64, args: [usize; 6]) -> Result<isize, Errno> {
    // SAFETY: the caller vouches for it.
    let result = unsafe { system_call(number, args) };
    if (-4095..0).contains(&result) { Err(Errno(-result as i32)) } else { Ok(result) }
}
