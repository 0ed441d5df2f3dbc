//! The handler: what becomes of a system call that was intercepted.

use super::{ASK, Gate, SELECTOR, entry, hook, masks, mem, raw};
use crate::backing;
use crate::errno::{Errno, Stop};
use crate::kernel::{ask, system_call};
use libc::{c_int, c_long, c_void, siginfo_t, ucontext_t};
use std::cell::Cell;
use std::sync::atomic::Ordering;

const SET_DISPATCH: usize = 59;
const DISPATCH_ON: usize = 1;
/// The `si_code` of an intercepted call.
const INTERCEPTED: c_int = 2;
const RESTORER: u64 = 0x0400_0000;

/// Finds our code, and makes `SIGSYS` ours.
pub(super) fn prepare() -> bool {
    // SAFETY: the function is called with pieces of the loader's list while it stands still.
    unsafe { libc::dl_iterate_phdr(Some(find_code), std::ptr::null_mut()) };
    if entry::CODE_LEN.load(Ordering::Relaxed) == 0 {
        return false;
    }
    entry::note_selector(SELECTOR.with(Cell::as_ptr) as usize);
    let action = masks::Action {
        handler: caught as *const () as usize,
        flags: (libc::SA_SIGINFO | libc::SA_NODEFER) as u64 | RESTORER,
        restorer: entry::restore as *const () as usize,
        mask: 0,
    };
    let args = [libc::SIGSYS as usize, &raw const action as usize, 0, size_of::<u64>(), 0, 0];
    // SAFETY: the handler below keeps to what handlers may do.
    let taken = unsafe { ask(libc::SYS_rt_sigaction, args) };
    taken.is_ok() && tell_kernel().is_ok()
}

/// Looks for the piece of the library that holds this very function.
unsafe extern "C" fn find_code(info: *mut libc::dl_phdr_info, _: usize, _: *mut c_void) -> c_int {
    // SAFETY: the loader gives a valid description of a library.
    let (base, headers) = unsafe {
        let info = &*info;
        (info.dlpi_addr as usize, std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()))
    };
    for header in
        headers.iter().filter(|header| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_X != 0)
    {
        let start = base + header.p_vaddr as usize;
        let len = header.p_memsz as usize;
        if (start..start + len).contains(&(find_code as *const () as usize)) {
            entry::CODE_START.store(start, Ordering::Relaxed);
            entry::CODE_LEN.store(len, Ordering::Relaxed);
            return 1;
        }
    }
    0
}

fn tell_kernel() -> Result<isize, Errno> {
    let (start, len) = (entry::CODE_START.load(Ordering::Relaxed), entry::CODE_LEN.load(Ordering::Relaxed));
    let selector = SELECTOR.with(Cell::as_ptr) as usize;
    // SAFETY: the byte lives as long as the thread.
    unsafe { ask(libc::SYS_prctl, [SET_DISPATCH, DISPATCH_ON, start, len, selector, 0]) }
}

/// The calling thread's calls are intercepted from now on.
pub(super) fn arm_thread() {
    let (set, how) = (masks::SYS, libc::SIG_UNBLOCK as usize);
    // SAFETY: reads a set on our stack.
    unsafe {
        system_call(libc::SYS_rt_sigprocmask, [how, &raw const set as usize, 0, size_of::<u64>(), 0, 0])
    };
    // It worked when the library was loaded.
    let _ = tell_kernel();
}

fn arguments(context: &ucontext_t) -> [usize; 6] {
    let registers = [libc::REG_RDI, libc::REG_RSI, libc::REG_RDX, libc::REG_R10, libc::REG_R8, libc::REG_R9];
    registers.map(|register| context.uc_mcontext.gregs[register as usize] as usize)
}

fn set(context: &mut ucontext_t, register: c_int, value: usize) {
    context.uc_mcontext.gregs[register as usize] = value as i64;
}

fn get(context: &ucontext_t, register: c_int) -> usize {
    context.uc_mcontext.gregs[register as usize] as usize
}

/// Sends the program on to one of our entries, from which it comes back by itself.
fn go_on(context: &mut ucontext_t, way: usize) {
    set(context, libc::REG_RCX, get(context, libc::REG_RIP));
    set(context, libc::REG_RIP, way);
}

unsafe extern "C" fn caught(_: c_int, info: *const siginfo_t, context: *mut ucontext_t) {
    // SAFETY: the kernel gives both.
    let (code, context) = unsafe { ((*info).si_code, &mut *context) };
    if code != INTERCEPTED {
        return;
    }
    let number = get(context, libc::REG_RAX) as c_long;
    if number == libc::SYS_rt_sigreturn {
        // SAFETY: the stack of a handler of the application's that is done, as it came to this call.
        unsafe { entry::leave(get(context, libc::REG_RSP)) };
    }
    let args = arguments(context);
    // The first word is the kernel's whole set.
    let mask = (&raw mut context.uc_sigmask).cast::<u64>();
    let before = Errno::last();
    let outcome = {
        let _gate = Gate::open();
        hook::guarded(|| match number {
            // SAFETY: part of the context.
            libc::SYS_rt_sigprocmask => masks::change(unsafe { &mut *mask }, args),
            libc::SYS_rt_sigaction => masks::dispose(args),
            _ => raw::perform(number, args),
        })
    };
    before.set();
    match outcome {
        Ok(value) => set(context, libc::REG_RAX, value as usize),
        Err(Stop::Errno(errno)) => set(context, libc::REG_RAX, -errno.0 as isize as usize),
        Err(Stop::Foreign | Stop::Outside(_)) => pass_on(context, number, args),
    }
}

/// What has nothing to do with Forebay is asked in the program's own context.
fn pass_on(context: &mut ucontext_t, number: c_long, args: [usize; 6]) {
    if let Some((way, mask)) = masks::waits(number, args) {
        set(context, libc::REG_R11, mask as usize);
        return go_on(context, way);
    }
    match number {
        libc::SYS_fork | libc::SYS_vfork => divide(context, libc::SYS_fork, args),
        libc::SYS_clone => clone(context, args),
        libc::SYS_clone3 => clone3(context, args),
        _ => go_on(context, entry::plain as *const () as usize),
    }
}

/// A child with a copy of the memory goes on from here. One that would borrow it gets a copy too: it would come back
/// over the stack of this handler.
fn divide(context: &mut ucontext_t, number: c_long, args: [usize; 6]) {
    backing::divide();
    // SAFETY: the application's own call.
    let child = unsafe { system_call(number, args) };
    backing::divide();
    if child == 0 {
        arm_thread();
        SELECTOR.set(ASK);
    }
    set(context, libc::REG_RAX, child as usize);
}

const BORROWS: usize = (libc::CLONE_VM | libc::CLONE_VFORK) as usize;
/// A thread that has thread-local storage of its own.
const THREAD: usize = (libc::CLONE_VM | libc::CLONE_THREAD | libc::CLONE_SETTLS) as usize;

fn clone(context: &mut ucontext_t, args: [usize; 6]) {
    let (flags, stack) = (args[0], args[1]);
    if stack == 0 {
        let mut args = args;
        args[0] &= !BORROWS;
        return divide(context, libc::SYS_clone, args);
    }
    let way = if flags & THREAD == THREAD { entry::clone_thread } else { entry::clone };
    if flags & THREAD != THREAD {
        backing::give_away();
    }
    // SAFETY: a stack that the application has made for the child.
    let top = unsafe { entry::hand_over(stack, stack, get(context, libc::REG_RIP)) };
    set(context, libc::REG_R11, top);
    go_on(context, way as *const () as usize);
}

/// The arguments of `clone3`, as far as they are looked at.
#[repr(C)]
#[derive(Clone, Copy)]
struct Clone3 {
    flags: u64,
    others: [u64; 4],
    stack: u64,
    stack_size: u64,
    tls: u64,
    more: [u64; 3],
}

fn clone3(context: &mut ucontext_t, args: [usize; 6]) {
    let plain = entry::plain as *const () as usize;
    let size = args[1];
    if !(64..=size_of::<Clone3>()).contains(&size) || mem::readable(args[0] as *const c_void, size).is_err() {
        return go_on(context, plain);
    }
    // SAFETY: integers.
    let mut wish: Clone3 = unsafe { std::mem::zeroed() };
    // SAFETY: readable, as was asked above, and no longer than the structure.
    unsafe { std::ptr::copy_nonoverlapping(args[0] as *const u8, (&raw mut wish).cast(), size) };
    if wish.stack == 0 {
        wish.flags &= !(BORROWS as u64);
        let args = [&raw const wish as usize, size, 0, 0, 0, 0];
        return divide(context, libc::SYS_clone3, args);
    }
    let thread = wish.flags as usize & THREAD == THREAD;
    if !thread {
        backing::give_away();
    }
    let top = (wish.stack + wish.stack_size) as usize;
    // SAFETY: a stack that the application has made for the child.
    let new = unsafe { entry::hand_over(top, args[0], get(context, libc::REG_RIP)) };
    wish.stack_size = new as u64 - wish.stack;
    // The kernel reads the wish before the child runs over it.
    let place = new - size_of::<Clone3>();
    // SAFETY: as above.
    unsafe { (place as *mut Clone3).write_unaligned(wish) };
    set(context, libc::REG_R11, place);
    let way = if thread { entry::clone3_thread } else { entry::clone3 };
    go_on(context, way as *const () as usize);
}
