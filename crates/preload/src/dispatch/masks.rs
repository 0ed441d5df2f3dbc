//! Removes `SIGSYS` from the signal sets in the application's calls.

use super::entry;
use super::mem;
use crate::errno::{Errno, Outcome};
use crate::kernel::try_system_call;
use libc::c_int;

pub(super) const SYS: u64 = 1 << (libc::SIGSYS - 1);

/// The kernel's structure for a signal action.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Action {
    pub(super) handler: usize,
    pub(super) flags: u64,
    pub(super) restorer: usize,
    pub(super) mask: u64,
}

/// `rt_sigprocmask` changes the mask that the program has after the handler returns.
pub(super) fn change(mask: &mut u64, args: [usize; 6]) -> Outcome<i64> {
    let [how, set, old, size, ..] = args;
    if size != size_of::<u64>() {
        return Err(Errno(libc::EINVAL).into());
    }
    let before = *mask;
    if set != 0 {
        let set = mem::take(set as *const u64)?;
        *mask = match how as c_int {
            libc::SIG_BLOCK => before | set,
            libc::SIG_UNBLOCK => before & !set,
            libc::SIG_SETMASK => set,
            _ => return Err(Errno(libc::EINVAL).into()),
        } & !SYS;
    }
    if old != 0 {
        mem::give(old as *mut u64, before)?;
    }
    Ok(0)
}

/// `rt_sigaction`: handlers run with `SIGSYS` unblocked, and the application cannot change the action of `SIGSYS`.
pub(super) fn dispose(args: [usize; 6]) -> Outcome<i64> {
    let [signal, action, old, size, ..] = args;
    if signal as c_int == libc::SIGSYS {
        if old != 0 {
            mem::give(old as *mut Action, Action { handler: 0, flags: 0, restorer: 0, mask: 0 })?;
        }
        return Ok(0);
    }
    let mut changed = None;
    if action != 0 {
        let mut wanted = mem::take(action as *const Action)?;
        wanted.mask &= !SYS;
        changed = Some(wanted);
    }
    let action = changed.as_ref().map_or(0, |action| std::ptr::from_ref(action) as usize);
    // SAFETY: the application's own call, with a signal action of this library in place of its own.
    Ok(unsafe { try_system_call(libc::SYS_rt_sigaction, [signal, action, old, size, 0, 0]) }? as i64)
}

/// The entry for a call that waits with another signal set, and the set to put into `r11`.
pub(super) fn waits(number: i64, args: [usize; 6]) -> Option<(usize, u64)> {
    let (pointer, way) = match number {
        libc::SYS_rt_sigsuspend => (args[0], entry::mask_in_rdi as *const () as usize),
        libc::SYS_ppoll => (args[3], entry::mask_in_r10 as *const () as usize),
        libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => (args[4], entry::mask_in_r8 as *const () as usize),
        libc::SYS_pselect6 if args[5] != 0 => {
            let [pointer, _] = mem::take(args[5] as *const [usize; 2]).ok()?;
            (pointer, entry::mask_behind_r9 as *const () as usize)
        }
        _ => return None,
    };
    if pointer == 0 {
        return None;
    }
    let set = mem::take(pointer as *const u64).ok()?;
    (set & SYS != 0).then_some((way, set & !SYS))
}
