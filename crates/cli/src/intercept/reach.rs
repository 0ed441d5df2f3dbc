//! Whether the preload library can intercept the calls of a program.

use forebay_client::{PROGRAM_HEAD, ProgramKind, program_kind};
use rustix::fs::{Access, access};
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Maximum depth of script interpreters that the kernel follows.
const DEPTH: usize = 5;
const SET_ID: u32 = 0o6000;

/// How the calls of a program can be intercepted.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Reach {
    /// Through the preload library.
    Library,
    /// Only through a mount, and why.
    Mount(String),
    /// Not at all, and why: it runs with privileges that the user does not have.
    Never(String),
}

/// How the calls of a program can be intercepted. A program that cannot be executed is left to the kernel; one that can
/// be executed but not read may be of any kind, and a mount serves all kinds.
pub(crate) fn reach(program: &OsStr) -> Reach {
    let mut path = match found(program) {
        Some(path) => path,
        None => return Reach::Library,
    };
    for _ in 0..DEPTH {
        if let Some(why) = secure(&path) {
            return Reach::Never(why);
        }
        let Some(head) = head(&path) else {
            let runs = access(&path, Access::EXEC_OK).is_ok() && path.is_file();
            let why = || format!("{} cannot be read, so how it is linked is unknown", path.display());
            return if runs { Reach::Mount(why()) } else { Reach::Library };
        };
        let why = match program_kind(&head) {
            ProgramKind::Dynamic | ProgramKind::Unknown => return Reach::Library,
            ProgramKind::Script(interpreter) => {
                path = interpreter;
                continue;
            }
            ProgramKind::Static => "is linked statically".to_owned(),
            ProgramKind::Go => "is written in Go".to_owned(),
            ProgramKind::OtherLoader(loader) => format!("is loaded by {}", loader.display()),
            ProgramKind::OtherMachine => "is built for another architecture".to_owned(),
        };
        return Reach::Mount(format!("{} {why}", path.display()));
    }
    Reach::Library
}

/// The file that a program name resolves to, as `execvp` does.
fn found(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(program.into());
    }
    let path = std::env::var_os("PATH")?;
    let mut files = std::env::split_paths(&path).map(|dir| dir.join(program));
    files.find(|file| {
        file.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    })
}

fn head(path: &Path) -> Option<Vec<u8>> {
    let mut head = Vec::new();
    File::open(path).ok()?.take(PROGRAM_HEAD as u64).read_to_end(&mut head).ok()?;
    Some(head)
}

/// Why the dynamic loader would ignore `LD_PRELOAD`: the program gains privileges.
fn secure(path: &Path) -> Option<String> {
    let meta = path.metadata().ok()?;
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    let path = path.display();
    if meta.mode() & SET_ID != 0 {
        let (as_user, as_group) = (meta.mode() & 0o4000 != 0, meta.mode() & 0o2010 == 0o2010);
        if as_user && meta.uid() != user.as_raw() || as_group && meta.gid() != group.as_raw() {
            return Some(format!("{path} runs with the rights of its owner (set-uid or set-gid)"));
        }
    }
    let mut value = [0; 64];
    let capable = rustix::fs::getxattr(path.to_string(), "security.capability", &mut value).is_ok();
    (capable && !user.is_root()).then(|| format!("{path} has capabilities of its own"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_programs_and_scripts_use_the_library() {
        let dir = tempfile::tempdir().expect("a directory");
        let script = dir.path().join("script");
        std::fs::write(&script, "#!/bin/sh\n").expect("a file");
        for program in
            [OsStr::new("/bin/sh"), OsStr::new("sh"), script.as_os_str(), OsStr::new("no-such-program")]
        {
            assert_eq!(reach(program), Reach::Library, "{}", program.display());
        }
    }

    #[test]
    fn setuid_programs_of_other_users_are_never_reached() {
        if !rustix::process::geteuid().is_root() {
            return forebay_testkit::skip("reach", "not root: no file can be given to another user");
        }
        let dir = tempfile::tempdir().expect("a directory");
        let program = dir.path().join("program");
        std::fs::copy("/bin/true", &program).expect("a copy");
        std::os::unix::fs::chown(&program, Some(65534), Some(65534)).expect("root may");
        for (mode, library) in [(0o755, true), (0o4755, false), (0o2755, false), (0o2745, true)] {
            std::fs::set_permissions(&program, std::fs::Permissions::from_mode(mode)).expect("root may");
            assert_eq!(reach(program.as_os_str()) == Reach::Library, library, "{mode:o}");
        }
    }
}
