//! Paths without links, dots and repeated slashes.

use crate::errno::{Errno, Outcome, Stop, fail};
use crate::place::{Place, locate};
use crate::{cwd, engine, hook, mem, path, process_state};
use forebay_client::{MAX_LINKS, Step};
use forebay_model::{ErrorKind, FileId, FileKind};
use libc::{c_char, size_t};
use std::ffi::CString;

/// The path of a place with every symbolic link followed. All parts of it must exist.
pub(crate) fn text(place: &Place) -> Outcome<Vec<u8>> {
    let prefix = process_state::config().prefix.clone();
    let mut waiting: Vec<Vec<u8>> = Vec::new();
    let push = |waiting: &mut Vec<Vec<u8>>, path: &[u8]| {
        let parts: Vec<_> = path.split(|&byte| byte == b'/').filter(|part| !part.is_empty()).collect();
        waiting.extend(parts.into_iter().rev().map(<[u8]>::to_vec));
    };
    let Some(rest) = path::inside(&prefix, &place.full) else { return Err(Stop::Foreign) };
    push(&mut waiting, rest);
    let (mut done, mut links): (Vec<Vec<u8>>, _) = (Vec::new(), 0);
    while let Some(part) = waiting.pop() {
        match &part[..] {
            b"." => continue,
            b".." => {
                done.pop();
                continue;
            }
            _ => done.push(part),
        }
        let way = done.join(&b'/');
        match engine::run(|engine| engine.by_id().step(FileId::ROOT, &way, true))? {
            Step::Found(attr) if attr.kind != FileKind::Directory && !waiting.is_empty() => {
                return fail(libc::ENOTDIR);
            }
            Step::Found(_) => {}
            Step::Link { target, .. } => {
                links += 1;
                if links > MAX_LINKS {
                    return Err(ErrorKind::TooManyLinks.into());
                }
                done.pop();
                if target.first() == Some(&b'/') {
                    done.clear();
                    let Some(rest) = path::inside(&prefix, &target) else {
                        let left: Vec<_> = waiting.iter().rev().cloned().collect();
                        let whole = path::join(&target, &left.join(&b'/'));
                        return Err(Stop::Outside(CString::new(whole).map_err(|_| Errno(libc::ENOENT))?));
                    };
                    push(&mut waiting, rest);
                } else {
                    push(&mut waiting, &target);
                }
            }
        }
    }
    Ok(done.iter().fold(prefix, |text, part| path::join(&text, part)))
}

/// A copy of `bytes` that the application frees.
pub(crate) fn allocated(bytes: &[u8], least: usize) -> Result<*mut c_char, Errno> {
    // SAFETY: `malloc` accepts any size.
    let copy = unsafe { libc::malloc(bytes.len().max(least)) };
    if copy.is_null() {
        return Err(cwd::NO_MEMORY);
    }
    // SAFETY: new memory, at least as large as the bytes.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), copy.cast(), bytes.len()) };
    Ok(copy.cast())
}

fn real_path(start: *const c_char, into: *mut c_char) -> Outcome<*mut c_char> {
    let mut text = text(&locate(libc::AT_FDCWD, start)?)?;
    text.push(0);
    if text.len() > mem::PATH_MAX {
        return fail(libc::ENAMETOOLONG);
    }
    if into.is_null() {
        return Ok(allocated(&text, 0)?);
    }
    mem::writable(into.cast(), text.len())?.copy_from_slice(&text);
    Ok(into)
}

hook::hooks! {
    fn [realpath](path: *const c_char, into: *mut c_char) -> *mut c_char, at path => real_path(path, into);
    fn [__realpath_chk](path: *const c_char, into: *mut c_char, _room: size_t) -> *mut c_char, at path =>
        real_path(path, into);
    fn [canonicalize_file_name](path: *const c_char) -> *mut c_char, at path =>
        real_path(path, std::ptr::null_mut());
}
