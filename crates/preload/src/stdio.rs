//! Streams of the C library on files of Forebay.
//!
//! The C library's own streams read and write bypassing this library. So streams on files of Forebay are created by
//! `fopencookie`, and hold their descriptor where `fileno` reads it. While descriptor 0, 1 or 2 is Forebay's, the
//! variable `stdin`, `stdout` or `stderr` points to such a stream; unwritten data of the previous stream moves to it.

use crate::errno::{Errno, Outcome, Stop, fail};
use crate::lock::Lock;
use crate::place::{locate, ours};
use crate::{data, descriptors, hook, mem, opening, process_state, table};
use libc::{FILE, c_char, c_int, c_void, off64_t, size_t, ssize_t};
use std::sync::atomic::{AtomicPtr, Ordering};

/// Larger than the C library's: a request costs more than a system call.
const BUFFER: usize = 256 << 10;

#[repr(C)]
#[derive(Clone, Copy)]
struct Functions {
    read: unsafe extern "C" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    write: unsafe extern "C" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
    seek: unsafe extern "C" fn(*mut c_void, *mut off64_t, c_int) -> c_int,
    close: unsafe extern "C" fn(*mut c_void) -> c_int,
}

unsafe extern "C" {
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut FILE;
    fn __fpurge(stream: *mut FILE);
    fn ftrylockfile(stream: *mut FILE) -> c_int;
    fn funlockfile(stream: *mut FILE);
    fn fflush_unlocked(stream: *mut FILE) -> c_int;
    static mut stdin: *mut FILE;
    static mut stdout: *mut FILE;
    static mut stderr: *mut FILE;
}

/// The first fields of the C library's stream: part of its binary interface.
#[repr(C)]
struct Layout {
    flags: c_int,
    read: [*mut c_char; 3],
    write_base: *mut c_char,
    write_next: *mut c_char,
    others: [*mut c_void; 8],
    descriptor: c_int,
}

/// State of a stream of Forebay.
struct Cookie {
    fd: c_int,
    stream: *mut FILE,
    buffer: Vec<u8>,
}

/// All streams of Forebay.
static STREAMS: Lock<Vec<usize>> = Lock::new(Vec::new());

fn is_ours(stream: *mut FILE) -> bool {
    process_state::is_set_up() && STREAMS.with(|streams| streams.contains(&(stream as usize)))
}

fn answer<T: hook::Failed>(outcome: Outcome<T>, fd: c_int, raw: impl FnOnce(c_int) -> Result<T, Errno>) -> T {
    match outcome {
        Ok(value) => value,
        Err(Stop::Errno(errno)) => hook::failed(errno),
        // The stream's descriptor now refers to a foreign file.
        Err(_) => raw(fd).unwrap_or_else(hook::failed),
    }
}

fn kernel(number: i64, fd: c_int, address: usize, len: usize) -> Result<ssize_t, Errno> {
    // SAFETY: the C library passes its own buffer.
    unsafe { crate::kernel::try_system_call(number, [fd as usize, address, len, 0, 0, 0]) }
}

unsafe extern "C" fn read(cookie: *mut c_void, into: *mut c_char, len: size_t) -> ssize_t {
    // SAFETY: the cookie belongs to this stream alone.
    let fd = unsafe { (*cookie.cast::<Cookie>()).fd };
    let read = hook::guarded(|| data::read_fd(fd, into.cast(), len, data::At::Current));
    answer(read, fd, |fd| kernel(libc::SYS_read, fd, into as usize, len))
}

unsafe extern "C" fn write(cookie: *mut c_void, from: *const c_char, len: size_t) -> ssize_t {
    // SAFETY: as above.
    let fd = unsafe { (*cookie.cast::<Cookie>()).fd };
    let written = hook::guarded(|| data::write_fd(fd, from.cast(), len, data::At::Current));
    // The C library takes 0 for an error here.
    answer(written, fd, |fd| kernel(libc::SYS_write, fd, from as usize, len)).max(0)
}

unsafe extern "C" fn seek(cookie: *mut c_void, place: *mut off64_t, whence: c_int) -> c_int {
    // SAFETY: as above; `place` points to a variable of the C library.
    let (fd, offset) = unsafe { ((*cookie.cast::<Cookie>()).fd, *place) };
    let sought = hook::guarded(|| data::seek(fd, offset, whence));
    let sought = answer(sought, fd, |fd| {
        kernel(libc::SYS_lseek, fd, offset as usize, whence as usize).map(|at| at as i64)
    });
    if sought < 0 {
        return -1;
    }
    // SAFETY: as above.
    unsafe { *place = sought };
    0
}

unsafe extern "C" fn close(cookie: *mut c_void) -> c_int {
    // SAFETY: the C library closes a stream once, and does not use the cookie after that.
    let cookie = unsafe { Box::from_raw(cookie.cast::<Cookie>()) };
    STREAMS.with(|streams| streams.retain(|stream| *stream != cookie.stream as usize));
    for standard in 0..3 {
        // The application closed it while it replaced a standard stream.
        let _ = STANDING_IN[standard as usize].compare_exchange(
            cookie.stream,
            std::ptr::null_mut(),
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
    }
    let closed = hook::guarded(|| descriptors::close_fd(cookie.fd));
    answer(closed, cookie.fd, |fd| kernel(libc::SYS_close, fd, 0, 0).map(|_| 0))
}

const FUNCTIONS: Functions = Functions { read, write, seek, close };

/// Creates a stream on a descriptor of Forebay.
fn make(fd: c_int, mode: Mode, buffer: usize) -> Outcome<*mut FILE> {
    let cookie = Box::new(Cookie { fd, stream: std::ptr::null_mut(), buffer: Vec::with_capacity(buffer) });
    let cookie = Box::into_raw(cookie);
    // SAFETY: the cookie exists until the stream is closed; the functions take it.
    let stream = unsafe { fopencookie(cookie.cast(), mode.text().as_ptr(), FUNCTIONS) };
    if stream.is_null() {
        // SAFETY: no stream has taken ownership of it.
        drop(unsafe { Box::from_raw(cookie) });
        return Err(Errno::last().into());
    }
    // SAFETY: a new stream that no other code knows yet, of the layout its binary interface fixes.
    unsafe {
        (*stream.cast::<Layout>()).descriptor = fd;
        (*cookie).stream = stream;
        let how = if buffer == 0 { libc::_IONBF } else { libc::_IOFBF };
        let space = if buffer == 0 { std::ptr::null_mut() } else { (*cookie).buffer.as_mut_ptr().cast() };
        libc::setvbuf(stream, space, how, buffer);
    }
    STREAMS.with(|streams| streams.push(stream as usize));
    Ok(stream)
}

/// How a stream is opened.
#[derive(Clone, Copy)]
struct Mode {
    letter: u8,
    plus: bool,
    exclusive: bool,
    cloexec: bool,
}

impl Mode {
    fn read(text: *const c_char) -> Outcome<Mode> {
        let text = mem::path(text).ok_or(Errno(libc::EFAULT))?;
        let letter = *text.first().ok_or(Errno(libc::EINVAL))?;
        if !matches!(letter, b'r' | b'w' | b'a') {
            return fail(libc::EINVAL);
        }
        let rest: Vec<u8> = text[1..].iter().copied().take_while(|byte| *byte != b',').collect();
        let has = |byte| rest.contains(&byte);
        Ok(Mode { letter, plus: has(b'+'), exclusive: has(b'x'), cloexec: has(b'e') })
    }

    fn flags(self) -> c_int {
        let access = match (self.plus, self.letter) {
            (true, _) => libc::O_RDWR,
            (false, b'r') => libc::O_RDONLY,
            (false, _) => libc::O_WRONLY,
        };
        let create = match self.letter {
            b'w' => libc::O_CREAT | libc::O_TRUNC,
            b'a' => libc::O_CREAT | libc::O_APPEND,
            _ => 0,
        };
        let exclusive = if self.exclusive { libc::O_EXCL } else { 0 };
        access | create | exclusive | if self.cloexec { libc::O_CLOEXEC } else { 0 }
    }

    fn text(self) -> &'static std::ffi::CStr {
        match (self.letter, self.plus) {
            (b'r', false) => c"r",
            (b'r', true) => c"r+",
            (b'w', false) => c"w",
            (b'w', true) => c"w+",
            (_, false) => c"a",
            (_, true) => c"a+",
        }
    }
}

fn open_stream(path: *const c_char, mode: *const c_char) -> Outcome<*mut FILE> {
    let place = locate(libc::AT_FDCWD, path)?;
    let mode = Mode::read(mode)?;
    let fd = opening::open_place(&place, mode.flags(), 0o666)?;
    make(fd, mode, BUFFER)
}

fn stream_on(fd: c_int, mode: *const c_char) -> Outcome<*mut FILE> {
    let open = ours(fd)?;
    let mode = Mode::read(mode)?;
    let access = open.access as c_int & libc::O_ACCMODE;
    let wanted = mode.flags() & libc::O_ACCMODE;
    if access != libc::O_RDWR && access != wanted {
        return fail(libc::EINVAL);
    }
    if mode.letter == b'a' {
        open.flags.fetch_or(libc::O_APPEND as u32, Ordering::Relaxed);
    }
    make(fd, mode, BUFFER)
}

/// `freopen`. A standard stream keeps its descriptor, a stream of Forebay its address; any other is replaced by a new
/// stream.
fn reopen(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> Outcome<*mut FILE> {
    process_state::ready();
    let known = is_ours(stream);
    let place = if path.is_null() { Err(Stop::Foreign) } else { locate(libc::AT_FDCWD, path) };
    if let (Err(_), false) = (&place, known) {
        return place.map(|_| stream);
    }
    let mode = Mode::read(mode)?;
    // SAFETY: the caller's stream, valid until this returns.
    let old = unsafe {
        libc::fflush(stream);
        libc::fileno(stream)
    };
    if path.is_null() {
        // Another mode for the same file. As in the C library, only changes that need no new descriptor are made.
        adjust(stream, mode);
        return Ok(stream);
    }
    let fd = match place {
        Ok(place) => opening::open_place(&place, mode.flags(), 0o666)?,
        // SAFETY: the caller's own path.
        Err(_) => match unsafe { libc::open(path, mode.flags(), 0o666) } {
            -1 => return Err(Errno::last().into()),
            fd => fd,
        },
    };
    if !known && !(0..3).contains(&old) {
        retire(stream, old);
        return make(fd, mode, BUFFER);
    }
    descriptors::duplicate_to_same(fd, old).or_else(|stop| move_foreign(stop, fd, old))?;
    // SAFETY: opened above.
    unsafe { libc::close(fd) };
    if (0..3).contains(&old) {
        return Ok(variable(old as usize));
    }
    adjust(stream, mode);
    Ok(stream)
}

fn move_foreign(stop: Stop, fd: c_int, old: c_int) -> Outcome<c_int> {
    match stop {
        // SAFETY: two descriptors, neither of which is Forebay's.
        Stop::Foreign => match unsafe { libc::dup2(fd, old) } {
            -1 => Err(Errno::last().into()),
            fd => Ok(fd),
        },
        stop => Err(stop),
    }
}

/// Changes the mode of a stream of Forebay, and discards its buffer.
fn adjust(stream: *mut FILE, mode: Mode) {
    const NO_READS: c_int = 4;
    const NO_WRITES: c_int = 8;
    const APPENDS: c_int = 0x1000;
    let mut flags = match (mode.plus, mode.letter) {
        (true, _) => 0,
        (false, b'r') => NO_WRITES,
        (false, _) => NO_READS,
    };
    flags |= if mode.letter == b'a' { APPENDS } else { 0 };
    // SAFETY: a stream of Forebay, of the layout its binary interface fixes.
    unsafe {
        __fpurge(stream);
        libc::clearerr(stream);
        let layout = stream.cast::<Layout>();
        (*layout).flags = (*layout).flags & !(NO_READS | NO_WRITES | APPENDS) | flags;
    }
}

/// Disables a stream that was replaced: further calls on it fail.
fn retire(stream: *mut FILE, fd: c_int) {
    // SAFETY: the caller's stream, of the layout its binary interface fixes. It is not freed, because the application
    // may still use its address: without a descriptor, every call on it fails.
    unsafe {
        libc::close(fd);
        (*stream.cast::<Layout>()).descriptor = -1;
    }
}

/// Streams of Forebay that replace the standard ones, kept once created, and the streams they replace.
static STANDING_IN: [AtomicPtr<FILE>; 3] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 3];
static ORIGINAL: [AtomicPtr<FILE>; 3] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 3];

fn place_of(standard: usize) -> *mut *mut FILE {
    match standard {
        0 => &raw mut stdin,
        1 => &raw mut stdout,
        _ => &raw mut stderr,
    }
}

fn variable(standard: usize) -> *mut FILE {
    // SAFETY: one of three variables of the C library, which lets programs assign to them.
    unsafe { *place_of(standard) }
}

/// Replaces the standard streams of a new program whose descriptors are Forebay's.
pub(crate) fn standard_streams() {
    (0..3).for_each(changed);
}

/// Switches a standard stream when its descriptor now refers to another file.
pub(crate) fn changed(fd: c_int) {
    if !(0..3).contains(&fd) || !process_state::is_set_up() || process_state::is_borrowed() {
        return;
    }
    let standard = fd as usize;
    let original = ORIGINAL[standard].load(Ordering::Acquire);
    match (table::get(fd).is_some(), original.is_null()) {
        (true, true) => {
            let Some(stream) = stand_in(fd) else { return };
            ORIGINAL[standard].store(variable(standard), Ordering::Release);
            replace(standard, stream);
        }
        (false, false) => {
            ORIGINAL[standard].store(std::ptr::null_mut(), Ordering::Release);
            replace(standard, original);
        }
        _ => {}
    }
}

/// The stream of Forebay for a standard descriptor. The application may keep its address, so it is created once.
fn stand_in(fd: c_int) -> Option<*mut FILE> {
    let place = &STANDING_IN[fd as usize];
    let known = place.load(Ordering::Acquire);
    if !known.is_null() {
        return Some(known);
    }
    let letter = if fd == 0 { b'r' } else { b'w' };
    let mode = Mode { letter, plus: false, exclusive: false, cloexec: false };
    let stream = make(fd, mode, if fd == 2 { 0 } else { BUFFER }).ok()?;
    place.store(stream, Ordering::Release);
    Some(stream)
}

/// Points the variable to another stream; unwritten data of the old one moves to it.
fn replace(standard: usize, new: *mut FILE) {
    let old = variable(standard);
    // SAFETY: both are streams of the C library; the old one's buffer is read as its layout says.
    unsafe {
        *place_of(standard) = new;
        let layout = old.cast::<Layout>();
        let (base, next) = ((*layout).write_base, (*layout).write_next);
        if standard != 0 && !base.is_null() && next > base {
            libc::fwrite(base.cast(), 1, next.offset_from_unsigned(base), new);
            __fpurge(old);
        }
    }
}

/// Flushes the streams of Forebay, except those locked by other threads.
pub(crate) fn flush() {
    for stream in STREAMS.with(|streams| streams.clone()) {
        let stream = stream as *mut FILE;
        // SAFETY: a stream that is on the list is open.
        unsafe {
            if ftrylockfile(stream) == 0 {
                fflush_unlocked(stream);
                funlockfile(stream);
            }
        }
    }
}

/// `vdprintf`: the C library's own would bypass this library.
pub(crate) fn print(fd: c_int, format: *const c_char, arguments: *mut c_void) -> Outcome<c_int> {
    ours(fd)?;
    let mut text: *mut c_char = std::ptr::null_mut();
    // SAFETY: the application's own format and arguments; the text is freed below.
    let len = unsafe { vasprintf(&raw mut text, format, arguments) };
    if len < 0 {
        return Err(Errno::last().into());
    }
    let written = data::write_fd(fd, text.cast(), len as usize, data::At::Current);
    // SAFETY: allocated by the C library above.
    unsafe { libc::free(text.cast()) };
    written.map(|count| count as c_int)
}

unsafe extern "C" {
    fn vasprintf(into: *mut *mut c_char, format: *const c_char, arguments: *mut c_void) -> c_int;
}

hook::hooks! {
    fn [vdprintf](fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int => print(fd, format, arguments);
    fn [__vdprintf_chk](fd: c_int, _flag: c_int, format: *const c_char, arguments: *mut c_void) -> c_int =>
        print(fd, format, arguments);
    fn [fopen, fopen64](path: *const c_char, mode: *const c_char) -> *mut FILE, at path => open_stream(path, mode);
    fn [fdopen](fd: c_int, mode: *const c_char) -> *mut FILE => stream_on(fd, mode);
    fn [freopen, freopen64](path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE, at path =>
        reopen(path, mode, stream);
}
