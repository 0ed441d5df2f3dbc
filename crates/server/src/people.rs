//! Users and groups by name, from this machine's files; a job's claims are compared with its caller.

use forebay_model::{Gid, Identity, MAX_GROUPS, Uid};
use forebay_policy::share::Caller;
use forebay_wire::UserKey;

/// The group of users without a group.
pub(crate) const NO_GROUP: Gid = Gid(65534);

/// A caller by name. Names that only a directory service knows are replaced by numbers.
pub(crate) fn caller(identity: &Identity, vouches: bool) -> Caller {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    describe(identity, vouches, &read("/etc/passwd"), &read("/etc/group"))
}

fn describe(identity: &Identity, vouches: bool, passwd: &str, group: &str) -> Caller {
    let numbers = [identity.gid].into_iter().chain(identity.groups.iter().copied());
    // A job may give its group by name or number. The name comes first and is the default.
    let groups = numbers.flat_map(|gid| [name(group, gid.0), Some(gid.0.to_string())]).flatten().collect();
    let user = name(passwd, identity.uid.0).unwrap_or_else(|| identity.uid.0.to_string());
    Caller { user, groups, vouches }
}

/// The identity of a key's holder: its user, with the groups that this machine's files list now.
pub(crate) fn identity(key: &UserKey) -> Identity {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    member(key, &read("/etc/passwd"), &read("/etc/group"))
}

fn member(key: &UserKey, passwd: &str, group: &str) -> Identity {
    let (uid, gid) = (key.uid, key.gid);
    let Some(user) = name(passwd, uid.0) else { return Identity { uid, gid, groups: Vec::new() } };
    let groups = group.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let number = Gid(fields.nth(2)?.parse().ok()?);
        (number != gid && fields.next()?.split(',').any(|member| member == user)).then_some(number)
    });
    Identity { uid, gid, groups: groups.take(MAX_GROUPS).collect() }
}

/// Finds a user by name or number; returns number, group and name.
pub(crate) fn user(text: &str) -> Option<(Uid, Gid, String)> {
    find(text, &std::fs::read_to_string("/etc/passwd").unwrap_or_default())
}

fn find(text: &str, passwd: &str) -> Option<(Uid, Gid, String)> {
    let entries = passwd.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, _, uid, gid, ..] = fields[..] else { return None };
        Some((Uid(uid.parse().ok()?), Gid(gid.parse().ok()?), name.to_owned()))
    });
    let entries: Vec<_> = entries.collect();
    let number = text.parse().ok().map(Uid);
    let found = entries.iter().find(|entry| entry.2 == text);
    let found = found.or_else(|| entries.iter().find(|entry| Some(entry.0) == number));
    // A uid without an entry is valid, but has no group.
    found.cloned().or_else(|| number.map(|uid| (uid, NO_GROUP, uid.to_string())))
}

/// Lines are `name:x:number:…`; the first name of a number wins.
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
    #[test]
    fn key_holder_gets_the_groups_of_this_machine() {
        let passwd = "root:x:0:0\nada:x:7:8::/\n";
        assert_eq!(find("ada", passwd), Some((Uid(7), Gid(8), "ada".to_owned())));
        assert_eq!(find("7", passwd), Some((Uid(7), Gid(8), "ada".to_owned())));
        assert_eq!(find("99", passwd), Some((Uid(99), NO_GROUP, "99".to_owned())));
        assert_eq!(find("bob", passwd), None);
        let (uid, gid, user) = find("ada", passwd).unwrap();
        let key = UserKey {
            id: forebay_wire::KeyId([1; 16]),
            uid,
            gid,
            user,
            made: 0,
            expires: None,
            revoked: None,
        };
        let group = "staff:x:8:ada\nastro:x:9:bob,ada\nadas:x:10:adam\nbroken\n";
        let groups = vec![Gid(9)];
        assert_eq!(member(&key, passwd, group), Identity { uid, gid, groups });
        assert_eq!(member(&key, "", group).groups, []);
    }

    #[test]
    fn names_come_from_the_files_or_fall_back_to_numbers() {
        let who = Identity { uid: Uid(7), gid: Gid(8), groups: vec![Gid(9)] };
        let described = describe(&who, false, "root:x:0:0\nada:x:7:8::/\n", "broken\nastro:x:9:ada\n");
        assert_eq!(
            (described.user.as_str(), described.groups),
            ("ada", vec!["8".into(), "astro".into(), "9".into()])
        );
        assert_eq!(describe(&who, true, "", "").user, "7");
    }
}
