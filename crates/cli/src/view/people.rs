//! Names of users and groups, as this machine's name service knows them.

use forebay_model::{Gid, Uid};
use nix::unistd::{Group, User};
use parking_lot::Mutex;
use std::collections::HashMap;

/// Names of users and groups by number, each looked up once. Who has no name is shown as a number.
#[derive(Default)]
pub(crate) struct People {
    users: Mutex<HashMap<Uid, String>>,
    groups: Mutex<HashMap<Gid, String>>,
}

impl People {
    pub(crate) fn user(&self, uid: Uid) -> String {
        let mut users = self.users.lock();
        let name = || User::from_uid(uid.0.into()).ok().flatten().map(|user| user.name);
        users.entry(uid).or_insert_with(|| name().unwrap_or_else(|| uid.to_string())).clone()
    }

    pub(crate) fn group(&self, gid: Gid) -> String {
        let mut groups = self.groups.lock();
        let name = || Group::from_gid(gid.0.into()).ok().flatten().map(|group| group.name);
        groups.entry(gid).or_insert_with(|| name().unwrap_or_else(|| gid.to_string())).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_groups_have_names_or_numbers() {
        let people = People::default();
        assert_eq!((people.user(Uid(0)), people.group(Gid(0))), ("root".to_owned(), "root".to_owned()));
        assert_eq!(people.user(Uid(3_999_999_999)), "3999999999");
        assert_eq!(people.group(Gid(3_999_999_999)), "3999999999");
    }
}
