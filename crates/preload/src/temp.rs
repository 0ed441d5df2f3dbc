//! Temporary names: the C library's own functions would bypass this library.

use crate::errno::{Errno, Outcome, Stop, fail};
use crate::opening::open_place;
use crate::place::locate;
use crate::{hook, mem};
use libc::{c_char, c_int};

const LETTERS: &[u8; 62] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
const PLACES: usize = 6;
const ATTEMPTS: usize = 256;

/// Fills in the template until `attempt` finds a name that does not exist.
fn try_names<T>(template: *mut c_char, suffix: c_int, attempt: impl Fn() -> Outcome<T>) -> Outcome<T> {
    locate(libc::AT_FDCWD, template)?;
    let len = mem::path(template).ok_or(Stop::Foreign)?.len();
    let suffix = usize::try_from(suffix).map_err(|_| Errno(libc::EINVAL))?;
    let start = len.checked_sub(suffix + PLACES).ok_or(Errno(libc::EINVAL))?;
    let text = mem::writable(template.cast(), len)?;
    let places = &mut text[start..start + PLACES];
    if places != b"XXXXXX" {
        return fail(libc::EINVAL);
    }
    for _ in 0..ATTEMPTS {
        let mut rng = [0; PLACES];
        rustix::rand::getrandom(&mut rng, rustix::rand::GetRandomFlags::empty())?;
        for (place, die) in places.iter_mut().zip(rng) {
            *place = LETTERS[usize::from(die) % LETTERS.len()];
        }
        match attempt() {
            Err(Stop::Errno(Errno(libc::EEXIST))) => {}
            other => return other,
        }
    }
    fail(libc::EEXIST)
}

fn make_file(template: *mut c_char, suffix: c_int, flags: c_int) -> Outcome<c_int> {
    let flags = flags & !libc::O_ACCMODE | libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
    try_names(template, suffix, || open_place(&locate(libc::AT_FDCWD, template)?, flags, 0o600))
}

fn make_dir(template: *mut c_char) -> Outcome<*mut c_char> {
    try_names(template, 0, || {
        let entry = locate(libc::AT_FDCWD, template)?.entry(forebay_model::ErrorKind::Exists)?;
        crate::engine::run(|engine| engine.by_id().mkdir(entry.dir, entry.name, 0o700))?;
        Ok(template)
    })
}

fn make_name(template: *mut c_char) -> Outcome<*mut c_char> {
    try_names(template, 0, || match locate(libc::AT_FDCWD, template)?.find(false) {
        Err(Stop::Errno(Errno(libc::ENOENT))) => Ok(template),
        Ok(_) => fail(libc::EEXIST),
        Err(stop) => Err(stop),
    })
}

hook::hooks! {
    fn [mkstemp, mkstemp64](template: *mut c_char) -> c_int => make_file(template, 0, 0);
    fn [mkostemp, mkostemp64](template: *mut c_char, flags: c_int) -> c_int => make_file(template, 0, flags);
    fn [mkstemps, mkstemps64](template: *mut c_char, suffix: c_int) -> c_int => make_file(template, suffix, 0);
    fn [mkostemps, mkostemps64](template: *mut c_char, suffix: c_int, flags: c_int) -> c_int =>
        make_file(template, suffix, flags);
    fn [mkdtemp](template: *mut c_char) -> *mut c_char => make_dir(template);
    fn [mktemp](template: *mut c_char) -> *mut c_char => make_name(template);
}
