//! A layout that a new file is given, by its attribute or else by Lustre's own call, read back and compared.

use forebay_policy::place::lov::{ATTRIBUTE, LONGEST, Lov, Plain, Version};
use libc::{Ioctl, c_int};
use std::ffi::{CStr, CString, OsStr};
use std::io::{Error, Result};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// `LL_IOC_LOV_SETSTRIPE` and `LL_IOC_LOV_GETSTRIPE`.
const SET: Ioctl = 0x4008_669A;
const GET: Ioctl = 0x4008_669B;
/// What statfs says a Lustre is.
const MAGIC: u32 = 0x0BD0_0BD0;
/// Objects for which there is room in the longest answer.
const OBJECTS: u16 = 2700;

/// Whether somebody gave the directory of a path a layout.
pub(crate) fn of_directory(full: &[u8]) -> bool {
    let Some(parent) = Path::new(OsStr::from_bytes(full)).parent() else { return false };
    let (Ok(parent), Ok(name)) = (CString::new(parent.as_os_str().as_bytes()), CString::new(ATTRIBUTE))
    else {
        return false;
    };
    // SAFETY: both texts end with a zero; nothing is written to a buffer of no length.
    unsafe { libc::getxattr(parent.as_ptr(), name.as_ptr(), std::ptr::null_mut(), 0) > 0 }
}

/// Sets a layout and looks whether it has taken; `None` where there are none.
pub(crate) fn set(fd: c_int, asked: &Lov) -> std::result::Result<(), Option<String>> {
    let name = CString::new(ATTRIBUTE).map_err(|_| None)?;
    if let Err(error) = give(fd, &name, &asked.encode()) {
        return match error.raw_os_error() {
            Some(libc::EOPNOTSUPP) => Err(None),
            Some(libc::EPERM | libc::EACCES) => Err(Some(format!("{error}: ask who runs the file system"))),
            Some(libc::EREMOTEIO) => Err(Some(format!("{error}: a target is not active: exclude it"))),
            _ => Err(Some(error.to_string())),
        };
    }
    // Some kernels answer that all is well and do nothing.
    let bytes = taken(fd, &name).map_err(|error| {
        Some(match error.raw_os_error() {
            Some(libc::ENODATA) => "it was accepted and silently not set".to_owned(),
            _ => format!("it cannot be read back: {error}"),
        })
    })?;
    match Lov::parse(&bytes) {
        Ok(found) => match asked.unlike(&found) {
            None => Ok(()),
            Some(what) => Err(Some(format!("it was accepted, but the file has {what}"))),
        },
        Err(why) => Err(Some(format!("it cannot be read back: {why}"))),
    }
}

fn outcome(done: impl Into<i64>) -> Result<usize> {
    usize::try_from(done.into()).map_err(|_| Error::last_os_error())
}

/// Whether an attribute that is not to be had may be had by a call: on a Lustre too old for it, and nowhere else, where the
/// call would mean something else.
fn only_by_call(fd: c_int, error: &Error) -> bool {
    // SAFETY: the structure is plain numbers.
    let mut found = unsafe { std::mem::zeroed::<libc::statfs>() };
    error.raw_os_error() == Some(libc::EOPNOTSUPP)
        // SAFETY: a descriptor of ours, and room for the answer.
        && unsafe { libc::fstatfs(fd, &raw mut found) } == 0
        && found.f_type as u32 == MAGIC
}

fn give(fd: c_int, name: &CStr, bytes: &[u8]) -> Result<()> {
    // SAFETY: name and buffer are ours and as long as said.
    let set = unsafe { libc::fsetxattr(fd, name.as_ptr(), bytes.as_ptr().cast(), bytes.len(), 0) };
    match outcome(set) {
        Err(error) if only_by_call(fd, &error) => {
            // SAFETY: Lustre reads a layout, which says itself how long it is.
            outcome(unsafe { libc::ioctl(fd, SET, bytes.as_ptr()) }).map(drop)
        }
        other => other.map(drop),
    }
}

/// The layout that a file has.
fn taken(fd: c_int, name: &CStr) -> Result<Vec<u8>> {
    let mut found = vec![0_u8; LONGEST];
    // SAFETY: as above.
    let length = unsafe { libc::fgetxattr(fd, name.as_ptr(), found.as_mut_ptr().cast(), found.len()) };
    match outcome(length as i64) {
        Err(error) if only_by_call(fd, &error) => {
            // The question is a layout with as many stripes as there is room for.
            let room = Plain { version: Version::V3, count: OBJECTS, ..Plain::default() };
            let question = Lov::Plain(room).encode();
            found[..question.len()].copy_from_slice(&question);
            // SAFETY: there is room for as many objects as the question says, and for any layout in parts.
            outcome(unsafe { libc::ioctl(fd, GET, found.as_mut_ptr()) })?;
            found.truncate(Lov::length(&found).unwrap_or(LONGEST));
        }
        other => found.truncate(other?),
    }
    Ok(found)
}
