//! Sets the layout of a new file by its attribute or by Lustre's ioctl, reads it back and compares.

use forebay_policy::place::lov::{ATTRIBUTE, LONGEST, Lov, Plain, Version};
use libc::{Ioctl, c_int};
use std::ffi::{CStr, CString, OsStr};
use std::io::{Error, Result};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// `LL_IOC_LOV_SETSTRIPE` and `LL_IOC_LOV_GETSTRIPE`.
const SET: Ioctl = 0x4008_669A;
const GET: Ioctl = 0x4008_669B;
/// Lustre's file system type in statfs.
const MAGIC: u32 = 0x0BD0_0BD0;
/// Objects that fit into the longest result.
const OBJECTS: u16 = 2700;

/// Whether the directory of a path has its own layout.
pub(crate) fn of_directory(full: &[u8]) -> bool {
    let Some(parent) = Path::new(OsStr::from_bytes(full)).parent() else { return false };
    let (Ok(parent), Ok(name)) = (CString::new(parent.as_os_str().as_bytes()), CString::new(ATTRIBUTE))
    else {
        return false;
    };
    // SAFETY: both strings are NUL-terminated; nothing is written to a buffer of length zero.
    unsafe { libc::getxattr(parent.as_ptr(), name.as_ptr(), std::ptr::null_mut(), 0) > 0 }
}

/// Sets a layout and checks whether it was applied; the error is `None` where the file system has no layouts.
pub(crate) fn set(fd: c_int, asked: &Lov) -> std::result::Result<(), Option<String>> {
    let name = CString::new(ATTRIBUTE).map_err(|_| None)?;
    if let Err(error) = give(fd, &name, &asked.encode()) {
        return match error.raw_os_error() {
            Some(libc::EOPNOTSUPP) => Err(None),
            Some(libc::EPERM | libc::EACCES) => {
                Err(Some(format!("{error}: contact the administrator of the file system")))
            }
            Some(libc::EREMOTEIO) => Err(Some(format!("{error}: a target is not active: exclude it"))),
            _ => Err(Some(error.to_string())),
        };
    }
    // Some kernels report success without setting the layout.
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

/// Whether the ioctl may work where the attribute is not supported: only on a Lustre too old for the
/// attribute, because the ioctl number has other meanings elsewhere.
fn only_by_call(fd: c_int, error: &Error) -> bool {
    // SAFETY: all-zero bytes are a valid statfs.
    let mut found = unsafe { std::mem::zeroed::<libc::statfs>() };
    error.raw_os_error() == Some(libc::EOPNOTSUPP)
        // SAFETY: the descriptor is ours, and the buffer fits the result.
        && unsafe { libc::fstatfs(fd, &raw mut found) } == 0
        && found.f_type as u32 == MAGIC
}

fn give(fd: c_int, name: &CStr, bytes: &[u8]) -> Result<()> {
    // SAFETY: name and buffer are ours; the length is that of the buffer.
    let set = unsafe { libc::fsetxattr(fd, name.as_ptr(), bytes.as_ptr().cast(), bytes.len(), 0) };
    match outcome(set) {
        Err(error) if only_by_call(fd, &error) => {
            // SAFETY: Lustre reads a layout, which contains its own length.
            outcome(unsafe { libc::ioctl(fd, SET, bytes.as_ptr()) }).map(drop)
        }
        other => other.map(drop),
    }
}

/// The layout of a file.
fn taken(fd: c_int, name: &CStr) -> Result<Vec<u8>> {
    let mut found = vec![0_u8; LONGEST];
    // SAFETY: as above.
    let length = unsafe { libc::fgetxattr(fd, name.as_ptr(), found.as_mut_ptr().cast(), found.len()) };
    match outcome(length as i64) {
        Err(error) if only_by_call(fd, &error) => {
            // The request is a layout with as many stripes as fit.
            let room = Plain { version: Version::V3, count: OBJECTS, ..Plain::default() };
            let question = Lov::Plain(room).encode();
            found[..question.len()].copy_from_slice(&question);
            // SAFETY: the buffer fits as many objects as the request names, and any composite layout.
            outcome(unsafe { libc::ioctl(fd, GET, found.as_mut_ptr()) })?;
            found.truncate(Lov::length(&found).unwrap_or(LONGEST));
        }
        other => found.truncate(other?),
    }
    Ok(found)
}
