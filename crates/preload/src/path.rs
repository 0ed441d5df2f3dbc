//! Decides which paths are inside Forebay. Pure functions.

/// The default prefix.
const USUAL: &[u8] = b"/fb";

/// A prefix without repeated or trailing slashes; an invalid one is replaced by the default.
pub(crate) fn clean_prefix(given: Option<&[u8]>) -> Vec<u8> {
    let given = given.filter(|given| given.starts_with(b"/")).unwrap_or(USUAL);
    let cleaned = normal(given);
    if cleaned == b"/" { USUAL.to_vec() } else { cleaned }
}

fn parts(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|&byte| byte == b'/').filter(|part| !part.is_empty() && *part != b".")
}

/// An absolute path without `.`, `..` and empty parts.
pub(crate) fn normal(path: &[u8]) -> Vec<u8> {
    let mut stack: Vec<&[u8]> = Vec::new();
    for part in parts(path) {
        match part {
            b".." => drop(stack.pop()),
            part => stack.push(part),
        }
    }
    if stack.is_empty() {
        return b"/".to_vec();
    }
    stack.iter().flat_map(|part| std::iter::once(b'/').chain(part.iter().copied())).collect()
}

/// How an absolute path relates to the prefix, judged by its text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way<'p> {
    /// It leads inside; the rest after the prefix, unchanged: the service resolves `..` in it.
    Inside(&'p [u8]),
    /// It leads inside and out again.
    Through,
    /// It does not touch the prefix.
    Outside,
}

/// The rest after the prefix, if an absolute path leads inside.
pub(crate) fn inside<'p>(prefix: &[u8], path: &'p [u8]) -> Option<&'p [u8]> {
    match way(prefix, path) {
        Way::Inside(rest) => Some(rest),
        _ => None,
    }
}

pub(crate) fn way<'p>(prefix: &[u8], path: &'p [u8]) -> Way<'p> {
    if path.first() != Some(&b'/') {
        return Way::Outside;
    }
    let whole = parts(prefix).count();
    let (mut depth, mut matched, mut start, mut met) = (0, 0, 0, false);
    let mut position = 0;
    while position < path.len() {
        let end =
            path[position..].iter().position(|&byte| byte == b'/').map_or(path.len(), |at| position + at);
        match &path[position..end] {
            b"" | b"." => {}
            b".." => {
                depth = usize::saturating_sub(depth, 1);
                matched = matched.min(depth);
            }
            part => {
                if matched == depth && matched < whole && parts(prefix).nth(matched) == Some(part) {
                    matched += 1;
                    start = end;
                    met |= matched == whole;
                }
                depth += 1;
            }
        }
        position = end + 1;
    }
    match (matched == whole, met) {
        (true, _) => Way::Inside(&path[start..]),
        (false, true) => Way::Through,
        (false, false) => Way::Outside,
    }
}

/// The first name of a relative path.
pub(crate) fn first(path: &[u8]) -> Option<&[u8]> {
    parts(path).next()
}

/// Joins a directory and a path.
pub(crate) fn join(dir: &[u8], path: &[u8]) -> Vec<u8> {
    [dir, b"/", path].concat()
}

/// The directory and the last name of a path; `None` if it ends in no name: the root, `.` or `..`.
pub(crate) fn split(path: &[u8]) -> Option<(&[u8], &[u8], bool)> {
    let trimmed = path.len() - path.iter().rev().take_while(|&&byte| byte == b'/').count();
    let start = path[..trimmed].iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    match &path[start..trimmed] {
        b"" | b"." | b".." => None,
        name => Some((&path[..start], name, trimmed < path.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_under_the_prefix_are_inside() {
        for (prefix, path, rest) in [
            ("/fb", "/fb", Some("")),
            ("/fb", "/fb/", Some("/")),
            ("/fb", "/fb/a/b", Some("/a/b")),
            ("/fb", "//fb//a", Some("//a")),
            ("/fb", "/./fb/a", Some("/a")),
            ("/fb", "/x/../fb/a", Some("/a")),
            ("/fb", "/../fb/a", Some("/a")),
            ("/fb", "/fbx/a", None),
            ("/fb", "/fb2", None),
            ("/fb", "/f", None),
            ("/fb", "/", None),
            ("/fb", "fb/a", None),
            ("/fb", "/x/fb/a", None),
            ("/fb", "/fb/..", None),
            ("/fb", "/fb/../etc", None),
            ("/fb", "/fb/a/../../etc", None),
            ("/fb", "/fb/../fb/a", Some("/a")),
            ("/fb", "/fb/a/../b", Some("/a/../b")),
            ("/fb", "/fb/fb/a", Some("/fb/a")),
            ("/scratch/fb", "/scratch/fb/x", Some("/x")),
            ("/scratch/fb", "/scratch/x", None),
            ("/scratch/fb", "/scratch/./fb", Some("")),
            ("/scratch/fb", "/scratch/y/../fb/x", Some("/x")),
            ("/scratch/fb", "/scratch/fb/..", None),
        ] {
            let found = inside(prefix.as_bytes(), path.as_bytes());
            assert_eq!(found, rest.map(str::as_bytes), "{prefix} {path}");
        }
    }

    #[test]
    fn dot_dot_out_of_the_prefix_is_through() {
        for (path, expected) in [
            ("/fb/..", Way::Through),
            ("/fb/../etc", Way::Through),
            ("/fb/a/../../x", Way::Through),
            ("/etc/..", Way::Outside),
            ("/fbx/..", Way::Outside),
        ] {
            assert_eq!(way(b"/fb", path.as_bytes()), expected, "{path}");
        }
    }

    #[test]
    fn prefixes_are_cleaned() {
        for (given, expected) in [
            (None, "/fb"),
            (Some(""), "/fb"),
            (Some("fb"), "/fb"),
            (Some("/"), "/fb"),
            (Some("/x//y/"), "/x/y"),
            (Some("/x/../y"), "/y"),
        ] {
            assert_eq!(clean_prefix(given.map(str::as_bytes)), expected.as_bytes(), "{given:?}");
        }
    }

    #[test]
    fn split_returns_directory_and_last_name() {
        for (path, expected) in [
            ("/a", Some(("/", "a", false))),
            ("a/b/", Some(("a/", "b", true))),
            ("/", None),
            ("", None),
            ("/a/..", None),
        ] {
            let found = split(path.as_bytes());
            assert_eq!(
                found,
                expected.map(|(dir, name, slash)| (dir.as_bytes(), name.as_bytes(), slash)),
                "{path}"
            );
        }
    }
}
