//! The handler of intercepted system calls.

use super::{BLOCK, Gate, HARMLESS, entry, hook, masks, mem, raw, selector, set_selector};
use crate::backing;
use crate::errno::{Errno, Stop};
use crate::kernel::{system_call, try_system_call};
use libc::{c_int, c_long, c_void, siginfo_t, ucontext_t};
use rustix::fs::{CWD, Mode, OFlags, RawDir};
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering;

const SET_DISPATCH: usize = 59;
const DISPATCH_ON: usize = 1;
/// The `si_code` of an intercepted call.
const INTERCEPTED: c_int = 2;
const RESTORER: u64 = 0x0400_0000;

/// Finds this library's code, and installs the handler of `SIGSYS`.
pub(super) fn prepare() -> bool {
    // SAFETY: the loader calls the function with its list of libraries while that list does not change.
    unsafe { libc::dl_iterate_phdr(Some(find_code), std::ptr::null_mut()) };
    if entry::CODE_LEN.load(Ordering::Relaxed) == 0 {
        return false;
    }
    entry::note_selector(selector() as usize);
    let action = masks::Action {
        handler: caught as *const () as usize,
        flags: (libc::SA_SIGINFO | libc::SA_NODEFER | libc::SA_RESTART) as u64 | RESTORER,
        restorer: entry::restore as *const () as usize,
        mask: 0,
    };
    let args = [libc::SIGSYS as usize, &raw const action as usize, 0, size_of::<u64>(), 0, 0];
    // SAFETY: the handler below is async-signal-safe.
    let taken = unsafe { try_system_call(libc::SYS_rt_sigaction, args) };
    taken.is_ok() && enable_dispatch().is_ok()
}

/// Finds the segment of the library that contains this function.
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

fn enable_dispatch() -> Result<isize, Errno> {
    let (start, len) = (entry::CODE_START.load(Ordering::Relaxed), entry::CODE_LEN.load(Ordering::Relaxed));
    let selector = selector() as usize;
    // SAFETY: the selector exists as long as the thread.
    unsafe { try_system_call(libc::SYS_prctl, [SET_DISPATCH, DISPATCH_ON, start, len, selector, 0]) }
}

/// Intercepts the calling thread's system calls from now on.
pub(super) fn arm_thread() {
    let (set, how) = (masks::SYS, libc::SIG_UNBLOCK as usize);
    // SAFETY: reads a set on the stack.
    unsafe {
        system_call(libc::SYS_rt_sigprocmask, [how, &raw const set as usize, 0, size_of::<u64>(), 0, 0])
    };
    // It worked when the library was loaded.
    let _ = enable_dispatch();
}

/// Makes all other threads of the application arm themselves, by a `SIGSYS` to each. The library's own threads block
/// it.
pub(super) fn arm_others() {
    // SAFETY: returns ids, and accesses no memory.
    let (process, own) =
        unsafe { (system_call(libc::SYS_getpid, [0; 6]), system_call(libc::SYS_gettid, [0; 6])) };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(dir) = rustix::fs::openat(CWD, c"/proc/self/task", flags, Mode::empty()) else { return };
    let mut buffer = [MaybeUninit::uninit(); 2048];
    let mut entries = RawDir::new(&dir, &mut buffer);
    while let Some(Ok(entry)) = entries.next() {
        let thread = entry.file_name().to_str().ok().and_then(|name| name.parse::<isize>().ok());
        if let Some(thread) = thread.filter(|thread| *thread != own) {
            let args = [process as usize, thread as usize, libc::SIGSYS as usize, 0, 0, 0];
            // SAFETY: a signal to a thread of this process, or to none if it has ended.
            unsafe { system_call(libc::SYS_tgkill, args) };
        }
    }
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

/// Continues the program at one of the entries of this library, which returns to the program.
fn go_on(context: &mut ucontext_t, way: usize) {
    set(context, libc::REG_RCX, get(context, libc::REG_RIP));
    set(context, libc::REG_RIP, way);
}

unsafe extern "C" fn caught(_: c_int, info: *const siginfo_t, context: *mut ucontext_t) {
    // SAFETY: the kernel passes both.
    let (code, context) = unsafe { ((*info).si_code, &mut *context) };
    if code == libc::SI_TKILL {
        // From `arm_others`, or from another sender, which is harmless.
        return super::arm();
    }
    if code != INTERCEPTED {
        return;
    }
    let number = get(context, libc::REG_RAX) as c_long;
    if number == libc::SYS_rt_sigreturn {
        // SAFETY: the stack of a handler of the application that has finished, as it was at this call.
        unsafe { entry::leave(get(context, libc::REG_RSP)) };
    }
    let args = arguments(context);
    if number != libc::SYS_rt_sigprocmask && HARMLESS.contains(&number) {
        return pass_on(context, number, args);
    }
    // The first word is the kernel's whole signal set.
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

/// A call that does not concern Forebay is made in the program's own context.
fn pass_on(context: &mut ucontext_t, number: c_long, args: [usize; 6]) {
    if let Some((way, mask)) = masks::waits(number, args) {
        set(context, libc::REG_R11, mask as usize);
        return go_on(context, way);
    }
    match number {
        libc::SYS_fork | libc::SYS_vfork => fork_process(context, libc::SYS_fork, args),
        libc::SYS_clone => clone(context, args),
        libc::SYS_clone3 => clone3(context, args),
        _ => go_on(context, entry::plain as *const () as usize),
    }
}

/// A child with a copy of the memory continues from here. A child that would borrow the memory gets a copy too:
/// otherwise it would overwrite the stack of this handler.
fn fork_process(context: &mut ucontext_t, number: c_long, args: [usize; 6]) {
    backing::note_fork();
    // SAFETY: the application's own call.
    let child = unsafe { system_call(number, args) };
    backing::note_fork();
    if child == 0 {
        arm_thread();
        set_selector(BLOCK);
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
        return fork_process(context, libc::SYS_clone, args);
    }
    let way = if flags & THREAD == THREAD { entry::clone_thread } else { entry::clone };
    if flags & THREAD != THREAD {
        backing::note_sharing();
    }
    // SAFETY: a stack that the application has made for the child.
    let top = unsafe { entry::hand_over(stack, stack, get(context, libc::REG_RIP)) };
    set(context, libc::REG_R11, top);
    go_on(context, way as *const () as usize);
}

/// The arguments of `clone3`, as far as they are read.
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
    // SAFETY: a structure of integers.
    let mut clone_args: Clone3 = unsafe { std::mem::zeroed() };
    // SAFETY: readable, as checked above, and no longer than the structure.
    unsafe { std::ptr::copy_nonoverlapping(args[0] as *const u8, (&raw mut clone_args).cast(), size) };
    if clone_args.stack == 0 {
        clone_args.flags &= !(BORROWS as u64);
        let args = [&raw const clone_args as usize, size, 0, 0, 0, 0];
        return fork_process(context, libc::SYS_clone3, args);
    }
    let thread = clone_args.flags as usize & THREAD == THREAD;
    if !thread {
        backing::note_sharing();
    }
    let top = (clone_args.stack + clone_args.stack_size) as usize;
    // SAFETY: a stack that the application has made for the child.
    let new = unsafe { entry::hand_over(top, args[0], get(context, libc::REG_RIP)) };
    clone_args.stack_size = new as u64 - clone_args.stack;
    // The kernel reads the arguments before the child overwrites them.
    let place = new - size_of::<Clone3>();
    // SAFETY: as above.
    unsafe { (place as *mut Clone3).write_unaligned(clone_args) };
    set(context, libc::REG_R11, place);
    let way = if thread { entry::clone3_thread } else { entry::clone3 };
    go_on(context, way as *const () as usize);
}
