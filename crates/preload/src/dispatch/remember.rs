//! Scan results of large libraries, by build id, in a small file next to this library: scanning all their code at every
//! start would be slow.
//!
//! The file consists of records of a fixed size, each appended by one write. It is used only if no other user can write
//! to it; when it is full, it is started again.

use rustix::fd::OwnedFd;
use rustix::fs::{CWD, Mode, OFlags};
use std::ffi::{CStr, CString};

const NAME: &str = "raw-calls";
const RECORD: usize = 32;
/// Bytes of a build id that are stored; usual ones have 20.
const ID: usize = 24;
const MOST: usize = 1024 * RECORD;
const CLEAN: u8 = b'n';
const RAW: u8 = b'y';

/// The file, and its records when it was opened.
pub(super) struct Memory {
    file: Option<OwnedFd>,
    records: Vec<u8>,
}

/// The path of the file, in the directory of this library.
fn path() -> Option<CString> {
    // SAFETY: filled by the loader, whose string stays valid as long as the library.
    let library = unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(path as *const () as *const _, &raw mut info) == 0 || info.dli_fname.is_null() {
            return None;
        }
        CStr::from_ptr(info.dli_fname).to_bytes()
    };
    let slash = library.iter().rposition(|byte| *byte == b'/')?;
    CString::new([&library[..=slash], NAME.as_bytes()].concat()).ok()
}

fn record(id: &[u8], verdict: u8) -> [u8; RECORD] {
    let mut record = [0; RECORD];
    record[..id.len().min(ID)].copy_from_slice(&id[..id.len().min(ID)]);
    record[ID] = id.len() as u8;
    record[RECORD - 1] = verdict;
    record
}

impl Memory {
    pub(super) fn open() -> Memory {
        Memory::read().unwrap_or(Memory { file: None, records: Vec::new() })
    }

    fn read() -> Option<Memory> {
        let flags = OFlags::RDWR | OFlags::APPEND | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(CWD, path()?.as_c_str(), flags, Mode::RUSR | Mode::WUSR).ok()?;
        let found = rustix::fs::fstat(&file).ok()?;
        let own = found.st_uid == rustix::process::geteuid().as_raw() && found.st_mode & 0o022 == 0;
        if !own || found.st_mode & libc::S_IFMT != libc::S_IFREG {
            return None;
        }
        if found.st_size as usize >= MOST {
            rustix::fs::ftruncate(&file, 0).ok()?;
        }
        let mut records = vec![0; (found.st_size as usize).min(MOST)];
        let len = rustix::io::pread(&file, &mut records, 0).ok()?;
        records.truncate(len);
        Some(Memory { file: Some(file), records })
    }

    /// Whether a library with this build id makes raw system calls, if known.
    pub(super) fn verdict(&self, id: &[u8]) -> Option<bool> {
        let wanted = record(id, 0);
        let mut records = self.records.chunks_exact(RECORD);
        let found = records.find(|record| record[..RECORD - 1] == wanted[..RECORD - 1])?;
        match found[RECORD - 1] {
            CLEAN => Some(false),
            RAW => Some(true),
            _ => None,
        }
    }

    /// Stores a result. If that fails, the library is scanned again next time.
    pub(super) fn keep(&mut self, id: &[u8], raw: bool) {
        let record = record(id, if raw { RAW } else { CLEAN });
        self.records.extend_from_slice(&record);
        if let Some(file) = &self.file {
            let _ = rustix::io::write(file, &record);
        }
    }
}
