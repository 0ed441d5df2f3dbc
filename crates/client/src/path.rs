//! Splitting paths. Pure.

use crate::by_id::too_long;
use forebay_model::{MAX_PATH, Name, Result};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The last component of a path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Last {
    /// A name, and whether a slash follows it.
    Name { name: Name, slash: bool },
    /// The root, `.` or `..`: an existing directory, but no name of its own.
    Directory,
}

/// Splits a path into its parent directory and its last component.
pub(crate) fn split(path: &[u8]) -> Result<(&[u8], Last)> {
    let trimmed = path.len() - path.iter().rev().take_while(|&&byte| byte == b'/').count();
    let start = path[..trimmed].iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    let last = match &path[start..trimmed] {
        b"" | b"." | b".." => Last::Directory,
        name => Last::Name { name: Name::new(name)?, slash: trimmed < path.len() },
    };
    Ok((&path[..start], last))
}

/// The first component of a path that is a name; `None` if there is none or `..` comes first.
pub(crate) fn first_part(path: &[u8]) -> Option<&[u8]> {
    let mut parts = path.split(|&byte| byte == b'/').filter(|part| !matches!(*part, b"" | b"."));
    parts.next().filter(|part| *part != b"..")
}

/// The bytes of a path; fails if it is too long.
pub(crate) fn bytes(path: &Path) -> Result<&[u8]> {
    let bytes = path.as_os_str().as_bytes();
    if bytes.len() > MAX_PATH { Err(too_long()) } else { Ok(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_model::ErrorKind;

    #[test]
    fn paths_split_into_parent_and_last_component() {
        for (path, parent, last) in [
            ("/a", "/", "a"),
            ("a", "", "a"),
            ("/a/b", "/a/", "b"),
            ("//a//b", "//a//", "b"),
            ("/a/b/", "/a/", "b/"),
            ("/a/b///", "/a/", "b/"),
            ("/a/..", "/a/", ""),
            ("/a/./", "/a/", ""),
            ("..", "", ""),
            ("/", "", ""),
            ("", "", ""),
            ("/...", "/", "..."),
        ] {
            let (found, part) = split(path.as_bytes()).unwrap();
            assert_eq!(found, parent.as_bytes(), "{path}");
            let part = match part {
                Last::Directory => String::new(),
                Last::Name { name, slash } => format!("{name}{}", if slash { "/" } else { "" }),
            };
            assert_eq!(part, last, "{path}");
        }
        assert_eq!(split(b"/a\0b").unwrap_err().kind(), ErrorKind::Invalid);
        let long = format!("/{}", "x".repeat(256));
        assert_eq!(split(long.as_bytes()).unwrap_err().kind(), ErrorKind::NameTooLong);
        let longer = "/x".repeat(2049);
        assert_eq!(bytes(Path::new(&longer)).unwrap_err().kind(), ErrorKind::NameTooLong);
        assert!(bytes(Path::new(&longer[..4096])).is_ok());
    }
}
