//! Interprets the table of operations: one line is one call, with its result as text.

use rustix::fs::{
    AtFlags, FallocateFlags, FileType, Mode, OFlags, RenameFlags, SeekFrom, Timespec, Timestamps, XattrFlags,
};
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// A directory, and the files that are open in it.
pub(crate) struct Shell {
    root: PathBuf,
    open: HashMap<String, OwnedFd>,
}

type Done = Result<String, Errno>;

impl Shell {
    pub(crate) fn new(root: &Path) -> Shell {
        Shell { root: root.to_owned(), open: HashMap::new() }
    }

    /// Executes one line; returns `ok`, a value, or the name of an error.
    pub(crate) fn run(&mut self, line: &str) -> String {
        let words: Vec<&str> = line.split(' ').collect();
        let done = match words[0].starts_with("f:") {
            true => self.on_handle(&words[0][2..], &words[1..]),
            false => self.on_path(&words),
        };
        match done {
            Ok(word) if word.is_empty() => "ok".to_owned(),
            Ok(word) => word,
            Err(error) => name(error),
        }
    }

    fn at(&self, name: &str) -> PathBuf {
        match name.strip_prefix("long:") {
            Some(len) => self.root.join("n".repeat(number(len))),
            None => self.root.join(name),
        }
    }

    fn on_path(&mut self, words: &[&str]) -> Done {
        let cwd = rustix::fs::CWD;
        match *words {
            ["open", handle, path, flags] => {
                let opened = rustix::fs::open(self.at(path), open_flags(flags), Mode::from_raw_mode(0o644))?;
                self.open.insert(handle.to_owned(), opened);
                nothing()
            }
            ["close", handle] => {
                drop(self.open.remove(handle));
                nothing()
            }
            ["mkdir", path, mode] => rustix::fs::mkdir(self.at(path), octal(mode)).and_then(|()| nothing()),
            ["mknod", path, mode] => {
                rustix::fs::mknodat(cwd, self.at(path), FileType::RegularFile, octal(mode), 0)
                    .and_then(|()| nothing())
            }
            ["rmdir", path] => rustix::fs::rmdir(self.at(path)).and_then(|()| nothing()),
            ["unlink", path] => rustix::fs::unlink(self.at(path)).and_then(|()| nothing()),
            ["rename", from, to] => rustix::fs::rename(self.at(from), self.at(to)).and_then(|()| nothing()),
            ["rename", from, to, how] => {
                let flags = if how == "swap" { RenameFlags::EXCHANGE } else { RenameFlags::NOREPLACE };
                rustix::fs::renameat_with(cwd, self.at(from), cwd, self.at(to), flags)
                    .and_then(|()| nothing())
            }
            ["link", from, to] => rustix::fs::link(self.at(from), self.at(to)).and_then(|()| nothing()),
            ["symlink", target, path] => rustix::fs::symlink(target, self.at(path)).and_then(|()| nothing()),
            ["readlink", path] => Ok(text(rustix::fs::readlink(self.at(path), Vec::new())?.to_bytes())),
            ["stat", path] => Ok(show(&rustix::fs::stat(self.at(path))?)),
            ["lstat", path] => Ok(show(&rustix::fs::lstat(self.at(path))?)),
            ["chmod", path, mode] => rustix::fs::chmod(self.at(path), octal(mode)).and_then(|()| nothing()),
            ["chown", path, uid, gid] => {
                let (uid, gid) = (number(uid) as u32, number(gid) as u32);
                let (uid, gid) = (rustix::fs::Uid::from_raw(uid), rustix::fs::Gid::from_raw(gid));
                rustix::fs::chown(self.at(path), Some(uid), Some(gid)).and_then(|()| nothing())
            }
            ["truncate", path, size] => {
                let file = std::fs::OpenOptions::new().write(true).open(self.at(path));
                file.and_then(|file| file.set_len(number(size) as u64)).map_err(|error| from_io(&error))?;
                nothing()
            }
            ["utimens", path, atime, mtime] => {
                let time = |secs: &str| Timespec { tv_sec: secs.parse().unwrap(), tv_nsec: 7 };
                let times = Timestamps { last_access: time(atime), last_modification: time(mtime) };
                rustix::fs::utimensat(cwd, self.at(path), &times, AtFlags::empty()).and_then(|()| nothing())
            }
            ["times", path] => {
                let stat = rustix::fs::stat(self.at(path))?;
                Ok(format!(
                    "{}.{} {}.{}",
                    stat.st_atime, stat.st_atime_nsec, stat.st_mtime, stat.st_mtime_nsec
                ))
            }
            ["list", path] => self.list(path),
            ["setxattr", path, key, value, how] => {
                let flags = match how {
                    "create" => XattrFlags::CREATE,
                    "replace" => XattrFlags::REPLACE,
                    _ => XattrFlags::empty(),
                };
                rustix::fs::setxattr(self.at(path), key, value.as_bytes(), flags).and_then(|()| nothing())
            }
            ["getxattr", path, key, size] => {
                let mut value = vec![0; number(size)];
                let len = rustix::fs::getxattr(self.at(path), key, value.as_mut_slice())?;
                Ok(format!("{len} {}", text(&value[..len.min(value.len())])))
            }
            ["listxattr", path] => {
                let mut names = vec![0_u8; 4096];
                let len = rustix::fs::listxattr(self.at(path), names.as_mut_slice())?;
                let mut names: Vec<_> = names[..len].split(|byte| *byte == 0).map(text).collect();
                names.retain(|name| name.starts_with("user."));
                names.sort();
                Ok(format!("[{}]", names.join(" ")))
            }
            ["removexattr", path, key] => {
                rustix::fs::removexattr(self.at(path), key).and_then(|()| nothing())
            }
            ["access", path, mode] => {
                rustix::fs::access(self.at(path), rustix::fs::Access::from_bits_retain(number(mode) as u32))
                    .and_then(|()| nothing())
            }
            _ => panic!("no such operation: {words:?}"),
        }
    }

    fn on_handle(&mut self, handle: &str, words: &[&str]) -> Done {
        let file = &self.open[handle];
        match *words {
            ["write", what] => Ok(rustix::io::write(file, what.as_bytes())?.to_string()),
            ["pwrite", at, what] => {
                Ok(rustix::io::pwrite(file, what.as_bytes(), number(at) as u64)?.to_string())
            }
            ["read", len] => {
                let mut into = vec![0; number(len)];
                let count = rustix::io::read(file, into.as_mut_slice())?;
                Ok(format!("\"{}\"", text(&into[..count])))
            }
            ["pread", at, len] => {
                let mut into = vec![0; number(len)];
                let count = rustix::io::pread(file, into.as_mut_slice(), number(at) as u64)?;
                Ok(format!("\"{}\"", text(&into[..count])))
            }
            ["seek", to] => Ok(rustix::fs::seek(file, SeekFrom::Start(number(to) as u64))?.to_string()),
            ["seek-end"] => Ok(rustix::fs::seek(file, SeekFrom::End(0))?.to_string()),
            ["stat"] => Ok(show(&rustix::fs::fstat(file)?)),
            ["truncate", size] => rustix::fs::ftruncate(file, number(size) as u64).and_then(|()| nothing()),
            ["sync"] => rustix::fs::fsync(file).and_then(|()| nothing()),
            ["datasync"] => rustix::fs::fdatasync(file).and_then(|()| nothing()),
            ["chmod", mode] => rustix::fs::fchmod(file, octal(mode)).and_then(|()| nothing()),
            ["lock"] => rustix::fs::flock(file, rustix::fs::FlockOperation::NonBlockingLockExclusive)
                .and_then(|()| nothing()),
            ["fallocate", how, offset, len] => {
                let flags = match how {
                    "plain" => FallocateFlags::empty(),
                    "keep" => FallocateFlags::KEEP_SIZE,
                    _ => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                };
                rustix::fs::fallocate(file, flags, number(offset) as u64, number(len) as u64)
                    .and_then(|()| nothing())
            }
            _ => panic!("no such operation on an open file: {words:?}"),
        }
    }

    fn list(&self, path: &str) -> Done {
        let entries = std::fs::read_dir(self.at(path)).map_err(|error| from_io(&error))?;
        let mut names: Vec<_> = entries
            .map(|entry| {
                let entry = entry.unwrap();
                let kind = entry.file_type().unwrap();
                let mark = if kind.is_dir() {
                    "/"
                } else if kind.is_symlink() {
                    "@"
                } else {
                    ""
                };
                format!("{}{mark}", entry.file_name().to_string_lossy())
            })
            .collect();
        names.sort();
        Ok(format!("[{}]", names.join(" ")))
    }
}

fn nothing() -> Done {
    Ok(String::new())
}

fn number(word: &str) -> usize {
    word.parse().unwrap_or_else(|_| panic!("{word} is not a number"))
}

fn octal(word: &str) -> Mode {
    Mode::from_raw_mode(u32::from_str_radix(word, 8).unwrap())
}

fn open_flags(letters: &str) -> OFlags {
    let mut flags = match letters {
        _ if letters.contains('r') && letters.contains('w') => OFlags::RDWR,
        _ if letters.contains('w') => OFlags::WRONLY,
        _ => OFlags::RDONLY,
    };
    for (letter, flag) in [
        ('c', OFlags::CREATE),
        ('x', OFlags::EXCL),
        ('t', OFlags::TRUNC),
        ('a', OFlags::APPEND),
        ('d', OFlags::DIRECTORY),
        ('n', OFlags::NOFOLLOW),
        ('s', OFlags::SYNC),
    ] {
        flags.set(flag, letters.contains(letter));
    }
    flags
}

/// The result of `stat`, without fields that differ between file systems.
fn show(stat: &rustix::fs::Stat) -> String {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => "file",
        FileType::Directory => "dir",
        FileType::Symlink => "link",
        _ => "special",
    };
    let mode = stat.st_mode & 0o7777;
    match kind {
        "dir" => format!("{kind} {mode:o} {}", stat.st_nlink),
        _ => format!("{kind} {mode:o} {} {}", stat.st_nlink, stat.st_size),
    }
}

fn text(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| if *byte == 0 { '.' } else { char::from(*byte) }).collect()
}

fn from_io(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// The symbolic name of an error.
fn name(error: Errno) -> String {
    let known = [
        (Errno::NOENT, "ENOENT"),
        (Errno::EXIST, "EEXIST"),
        (Errno::NOTDIR, "ENOTDIR"),
        (Errno::ISDIR, "EISDIR"),
        (Errno::NOTEMPTY, "ENOTEMPTY"),
        (Errno::INVAL, "EINVAL"),
        (Errno::NAMETOOLONG, "ENAMETOOLONG"),
        (Errno::LOOP, "ELOOP"),
        (Errno::BADF, "EBADF"),
        (Errno::PERM, "EPERM"),
        (Errno::ACCESS, "EACCES"),
        (Errno::NODATA, "ENODATA"),
        (Errno::RANGE, "ERANGE"),
        (Errno::OPNOTSUPP, "EOPNOTSUPP"),
        (Errno::FBIG, "EFBIG"),
        (Errno::AGAIN, "EAGAIN"),
    ];
    known
        .iter()
        .find(|(known, _)| *known == error)
        .map_or_else(|| format!("{error:?}"), |(_, name)| (*name).to_owned())
}
