//! Users and groups by name, as this machine's name service knows them; a job's claims are compared with its caller.

use forebay_model::{Gid, Identity, MAX_GROUPS, Uid};
use forebay_policy::share::Caller;
use forebay_wire::UserKey;
use nix::unistd::{Group, User, getgrouplist};
use std::ffi::CString;
use tokio::runtime::{Handle, RuntimeFlavor};

/// The group of users without a group.
pub(crate) const NO_GROUP: Gid = Gid(65534);

/// A user of this machine.
#[derive(Clone, PartialEq, Debug)]
struct Account {
    uid: Uid,
    gid: Gid,
    name: String,
}

/// Where users and groups are looked up.
trait Accounts {
    fn by_uid(&self, uid: Uid) -> Option<Account>;
    fn by_name(&self, name: &str) -> Option<Account>;
    fn group_name(&self, gid: Gid) -> Option<String>;
    /// All groups of a user.
    fn groups(&self, account: &Account) -> Vec<Gid>;
}

/// The C library's name service: files, LDAP, SSSD and whatever else `/etc/nsswitch.conf` names. What it does not know, or
/// cannot ask for now, is not there: numbers take the place of names.
struct NameService;

impl From<User> for Account {
    fn from(user: User) -> Account {
        Account { uid: Uid(user.uid.as_raw()), gid: Gid(user.gid.as_raw()), name: user.name }
    }
}

impl Accounts for NameService {
    fn by_uid(&self, uid: Uid) -> Option<Account> {
        User::from_uid(uid.0.into()).ok().flatten().map(Account::from)
    }

    fn by_name(&self, name: &str) -> Option<Account> {
        User::from_name(name).ok().flatten().map(Account::from)
    }

    fn group_name(&self, gid: Gid) -> Option<String> {
        Group::from_gid(gid.0.into()).ok().flatten().map(|group| group.name)
    }

    fn groups(&self, account: &Account) -> Vec<Gid> {
        let Ok(name) = CString::new(account.name.as_str()) else { return Vec::new() };
        let groups = getgrouplist(&name, account.gid.0.into()).unwrap_or_default();
        groups.into_iter().map(|gid| Gid(gid.as_raw())).collect()
    }
}

/// Runs a lookup, which may wait for another machine, without holding up the thread's other tasks.
fn look_up<T>(lookup: impl FnOnce(&NameService) -> T) -> T {
    match Handle::try_current().map(|handle| handle.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(|| lookup(&NameService)),
        _ => lookup(&NameService),
    }
}

/// A caller by name.
pub(crate) fn caller(identity: &Identity, vouches: bool) -> Caller {
    look_up(|accounts| describe(identity, vouches, accounts))
}

fn describe(identity: &Identity, vouches: bool, accounts: &impl Accounts) -> Caller {
    let numbers = [identity.gid].into_iter().chain(identity.groups.iter().copied());
    // A job may give its group by name or number. The name comes first and is the default.
    let groups = numbers.flat_map(|gid| [accounts.group_name(gid), Some(gid.0.to_string())]);
    let user = accounts.by_uid(identity.uid).map_or_else(|| identity.uid.0.to_string(), |found| found.name);
    Caller { user, groups: groups.flatten().collect(), vouches }
}

/// The identity of a key's holder: its user, with the groups that this machine knows now.
pub(crate) fn identity(key: &UserKey) -> Identity {
    look_up(|accounts| member(key, accounts))
}

fn member(key: &UserKey, accounts: &impl Accounts) -> Identity {
    let (uid, gid) = (key.uid, key.gid);
    let groups = accounts.by_uid(uid).map(|account| accounts.groups(&account)).unwrap_or_default();
    let groups = groups.into_iter().filter(|group| *group != gid).take(MAX_GROUPS).collect();
    Identity { uid, gid, groups }
}

/// Finds a user by name or number; returns number, group and name.
pub(crate) fn user(text: &str) -> Option<(Uid, Gid, String)> {
    look_up(|accounts| find(text, accounts))
}

fn find(text: &str, accounts: &impl Accounts) -> Option<(Uid, Gid, String)> {
    let number = text.parse().ok().map(Uid);
    let found = accounts.by_name(text).or_else(|| accounts.by_uid(number?));
    // A uid without an entry is valid, but has no group.
    found
        .map(|account| (account.uid, account.gid, account.name))
        .or_else(|| number.map(|uid| (uid, NO_GROUP, uid.to_string())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Users and groups of a test, with the names of a group's members.
    #[derive(Default)]
    struct Listed {
        users: Vec<Account>,
        groups: Vec<(Gid, &'static str, &'static [&'static str])>,
    }

    impl Accounts for Listed {
        fn by_uid(&self, uid: Uid) -> Option<Account> {
            self.users.iter().find(|user| user.uid == uid).cloned()
        }

        fn by_name(&self, name: &str) -> Option<Account> {
            self.users.iter().find(|user| user.name == name).cloned()
        }

        fn group_name(&self, gid: Gid) -> Option<String> {
            self.groups.iter().find(|group| group.0 == gid).map(|group| group.1.to_owned())
        }

        fn groups(&self, account: &Account) -> Vec<Gid> {
            let listed = self.groups.iter().filter(|group| group.2.contains(&account.name.as_str()));
            [account.gid].into_iter().chain(listed.map(|group| group.0)).collect()
        }
    }

    fn ada() -> Listed {
        Listed {
            users: vec![Account { uid: Uid(7), gid: Gid(8), name: "ada".to_owned() }],
            groups: vec![(Gid(9), "astro", &["bob", "ada"]), (Gid(10), "adas", &["adam"])],
        }
    }

    #[test]
    fn key_holder_gets_the_groups_of_this_machine() {
        let accounts = ada();
        assert_eq!(find("ada", &accounts), Some((Uid(7), Gid(8), "ada".to_owned())));
        assert_eq!(find("7", &accounts), Some((Uid(7), Gid(8), "ada".to_owned())));
        assert_eq!(find("99", &accounts), Some((Uid(99), NO_GROUP, "99".to_owned())));
        assert_eq!(find("bob", &accounts), None);
        let (uid, gid, user) = find("ada", &accounts).unwrap();
        let key = UserKey {
            id: forebay_wire::KeyId([1; 16]),
            uid,
            gid,
            user,
            made: 0,
            expires: None,
            revoked: None,
        };
        let groups = vec![Gid(9)];
        assert_eq!(member(&key, &accounts), Identity { uid, gid, groups });
        assert_eq!(member(&key, &Listed::default()).groups, []);
    }

    #[test]
    fn callers_without_a_name_are_numbers() {
        let who = Identity { uid: Uid(7), gid: Gid(8), groups: vec![Gid(9)] };
        let described = describe(&who, false, &ada());
        assert_eq!(
            (described.user.as_str(), described.groups),
            ("ada", vec!["8".into(), "astro".into(), "9".into()])
        );
        assert_eq!(describe(&who, true, &Listed::default()).user, "7");
    }

    #[test]
    fn name_service_knows_root() {
        let root = NameService.by_uid(Uid(0)).expect("root has an entry");
        assert_eq!((root.uid, root.gid, root.name.as_str()), (Uid(0), Gid(0), "root"));
        assert_eq!(NameService.by_name("root"), Some(root.clone()));
        assert!(NameService.groups(&root).contains(&Gid(0)));
        assert_eq!(NameService.group_name(Gid(0)).as_deref(), Some("root"));
        assert_eq!(NameService.by_name("no such user"), None);
        assert_eq!(caller(&Identity { uid: Uid(0), gid: Gid(0), groups: vec![] }, true).user, "root");
    }
}
