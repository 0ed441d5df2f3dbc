//! Users and groups by name, as far as this machine's files know them: what a job says about itself is compared with
//! who its caller is.

use forebay_model::Identity;
use forebay_policy::share::Caller;

/// A caller by name. Where only a directory service knows names, numbers stand for them.
pub(crate) fn caller(identity: &Identity, vouches: bool) -> Caller {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    describe(identity, vouches, &read("/etc/passwd"), &read("/etc/group"))
}

fn describe(identity: &Identity, vouches: bool, passwd: &str, group: &str) -> Caller {
    let numbers = [identity.gid].into_iter().chain(identity.groups.iter().copied());
    // A job may name its group either way; the name comes first, and is what counts when it names none of them.
    let groups = numbers.flat_map(|gid| [name(group, gid.0), Some(gid.0.to_string())]).flatten().collect();
    let user = name(passwd, identity.uid.0).unwrap_or_else(|| identity.uid.0.to_string());
    Caller { user, groups, vouches }
}

/// `name:x:number:…`; the first name of a number counts.
fn name(file: &str, number: u32) -> Option<String> {
    file.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, found) = (fields.next()?, fields.nth(1)?);
        (found.parse() == Ok(number)).then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_model::{Gid, Uid};

    #[test]
    fn names_come_from_the_files_and_numbers_do_otherwise() {
        let who = Identity { uid: Uid(7), gid: Gid(8), groups: vec![Gid(9)] };
        let told = describe(&who, false, "root:x:0:0\nada:x:7:8::/\n", "broken\nastro:x:9:ada\n");
        assert_eq!((told.user.as_str(), told.groups), ("ada", vec!["8".into(), "astro".into(), "9".into()]));
        assert_eq!(describe(&who, true, "", "").user, "7");
    }
}
